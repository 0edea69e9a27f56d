"""Grids of pictures: whole pixels, exact geometry, grey or RGB, with or without words beside them."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageFont

from iddpm.runtime.errors import DataError

__all__ = ["class_rows", "contact_sheet", "data_uri", "grid", "sheet"]

INK = (60, 60, 60)
TEXT_SIZE = 13
LINE = 18
GAP = 6
LABEL_LIMIT = 160


def grid(
    images: UInt8[np.ndarray, "n h w c"],
    columns: int,
    *,
    scale: int = 1,
    pad: int = 2,
    captions: Sequence[str] = (),
    row_labels: Sequence[str] = (),
    background: str | None = "white",
) -> Image.Image:
    """The pictures row by row, each enlarged `scale` times without blur.

    Args:
        images: Grey or RGB pictures.
        columns: Pictures in a row; the last row may be shorter.
        scale: Whole number of screen pixels for each picture pixel.
        pad: Space around every picture, in screen pixels.
        captions: A line under each picture.
        row_labels: A line at the left of each row.
        background: Colour of the space between; None leaves it transparent.

    Returns:
        Without words, a picture `columns * (w * scale + pad) + pad` wide, `rows * (h * scale + pad) + pad` high.

    Raises:
        DataError: The pictures have neither one nor three channels, or there are none.
    """
    n = len(images)
    rows = -(-n // columns)
    index = np.full(rows * columns, -1, dtype=np.int64)
    index[:n] = np.arange(n)
    return sheet(
        images,
        index.reshape(rows, columns),
        scale=scale,
        pad=pad,
        captions=captions,
        row_labels=row_labels,
        background=background,
    )


def contact_sheet(
    images: UInt8[np.ndarray, "n h w c"],
    labels: Int[np.ndarray, " n"],
    class_names: Sequence[str],
    *,
    per_class: int,
    scale: int = 1,
    pad: int = 2,
    background: str | None = "white",
) -> Image.Image:
    """One row for each class that occurs, in the order of the classes, with its name at the left.

    Raises:
        DataError: As `grid`.
    """
    classes = [int(label) for label in np.unique(labels)]
    names = [class_names[label] if 0 <= label < len(class_names) else f"class {label}" for label in classes]
    index = class_rows(labels, classes, per_class)
    return sheet(images, index, scale=scale, pad=pad, row_labels=names, background=background)


def class_rows(labels: Int[np.ndarray, " n"], classes: Sequence[int], per_class: int) -> Int[np.ndarray, "r k"]:
    """Positions of the first `per_class` pictures of each class, a class a row; -1 where it has fewer."""
    index = np.full((len(classes), per_class), -1, dtype=np.int64)
    for row, label in enumerate(classes):
        found = np.flatnonzero(labels == label)[:per_class]
        index[row, : len(found)] = found
    return index


def sheet(
    images: UInt8[np.ndarray, "n h w c"],
    index: Int[np.ndarray, "r k"],
    *,
    scale: int = 1,
    pad: int = 2,
    captions: Sequence[str] = (),
    row_labels: Sequence[str] = (),
    background: str | None = "white",
) -> Image.Image:
    """Pictures laid out as `index` says: its entries are positions in `images`, -1 an empty place.

    Raises:
        DataError: As `grid`.
    """
    _check(images, index)
    rows, columns = index.shape
    height, width = images.shape[1] * scale, images.shape[2] * scale
    left = _label_width(row_labels)
    pitch = height + pad + (LINE if captions else 0)
    canvas = _canvas((left + columns * (width + pad) + pad, rows * pitch + pad), images.shape[3], background)
    draw = ImageDraw.Draw(canvas)
    for row in range(rows):
        top = pad + row * pitch
        if row < len(row_labels):
            _write(draw, row_labels[row], (GAP, top + height // 2), left - 2 * GAP, "lm")
        for column in range(columns):
            position = int(index[row, column])
            if position < 0:
                continue
            x = left + pad + column * (width + pad)
            canvas.paste(_enlarged(images[position], scale), (x, top))
            if position < len(captions):
                _write(draw, captions[position], (x + width // 2, top + height + LINE // 2), width, "mm")
    return canvas


def data_uri(picture: Image.Image) -> str:
    """The picture as a PNG inside a `data:` address, which a page can show without any file beside it."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _check(images: np.ndarray, index: np.ndarray) -> None:
    if images.shape[3] not in (1, 3):
        raise DataError(
            f"pictures have {images.shape[3]} channels; a grid shows 1 (grey) or 3 (RGB)",
            "give it decoded pictures, as height x width x channels",
        )
    if index.size == 0 or (index < 0).all():
        raise DataError("there is no picture to put into a grid", "sample at least one picture first")


def _canvas(size: tuple[int, int], channels: int, background: str | None) -> Image.Image:
    if background is None:
        return Image.new("LA" if channels == 1 else "RGBA", size, (0, 0) if channels == 1 else (0, 0, 0, 0))
    return Image.new("L" if channels == 1 else "RGB", size, background)


def _enlarged(image: np.ndarray, scale: int) -> Image.Image:
    pixels = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(TEXT_SIZE)


def _label_width(labels: Sequence[str]) -> int:
    if not labels:
        return 0
    widest = max(_font().getlength(label) for label in labels)
    return min(LABEL_LIMIT, int(np.ceil(widest))) + 2 * GAP


def _write(draw: ImageDraw.ImageDraw, text: str, at: tuple[int, int], width: int, anchor: str) -> None:
    fitted = _fitted(text, width)
    ink = {"L": 60, "LA": (60, 255), "RGBA": (*INK, 255)}.get(str(draw.mode), INK)
    draw.text(at, fitted, fill=ink, font=_font(), anchor=anchor)


def _fitted(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    font = _font()
    if font.getlength(text) <= width:
        return text
    cut = text
    while cut and font.getlength(cut + "…") > width:
        cut = cut[:-1]
    return cut + "…" if cut else ""
