import hashlib
import io
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from iddpm.artifacts import tensors as module
from iddpm.artifacts.tensors import bare_names, write_tensors
from iddpm.runtime.errors import RunError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def of_every_kind():
    values = torch.arange(-3, 4)
    tensors = {f"{str(dtype)[6:]}.weight": values.to(dtype) for dtype in DTYPES}
    return tensors | {
        "0-d": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "none/of any": torch.zeros(2, 0, dtype=torch.int64),
        'é "quoted"': torch.randn(5, generator=torch.manual_seed(0)),
        "not a number": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def bits(tensor):
    carried = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return tensor.dtype, tuple(tensor.shape), carried.numpy().tobytes()


def test_the_library_reads_back_what_was_written(tmp_path):
    tensors = of_every_kind()
    write_tensors(tmp_path / "a.safetensors", tensors, {"step": "3", "note": 'é\n"x"'})
    back = load_file(tmp_path / "a.safetensors")
    assert back.keys() == tensors.keys()
    assert {name: bits(tensor) for name, tensor in back.items()} == {name: bits(t) for name, t in tensors.items()}
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"step": "3", "note": 'é\n"x"'}
        assert torch.equal(file.get_slice("int64.weight")[2:4], torch.tensor([-1, 0]))


@pytest.mark.parametrize("metadata", [{"format": "pt"}, {}])
def test_file_is_the_librarys_to_the_byte(tmp_path, metadata):
    tensors = of_every_kind()
    write_tensors(tmp_path / "ours", tensors, metadata)
    save_file(tensors, tmp_path / "theirs", metadata=metadata or None)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_size_and_hash_are_the_files_and_every_tensor_is_aligned(tmp_path):
    size, digest = write_tensors(tmp_path / "a", of_every_kind(), {"a": "b"})
    content = (tmp_path / "a").read_bytes()
    assert (size, digest) == (len(content), hashlib.sha256(content).hexdigest())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    starts = {name: entry["data_offsets"][0] for name, entry in header.items()}
    assert length % 8 == 0
    assert all(start % of_every_kind()[name].element_size() == 0 for name, start in starts.items())


def test_layout_and_shared_storage_do_not_matter(tmp_path):
    base = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    tensors = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base[0, 0].T,
        "strided": base.view(-1)[::7],
        "expanded": torch.tensor([3.0]).expand(4),
        "whole": base,
        "part": base[1],
        "bf16": base.bfloat16().to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(base),
    }
    write_tensors(tmp_path / "a", tensors, {})
    back = load_file(tmp_path / "a")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_no_tensors_are_a_file_too(tmp_path):
    write_tensors(tmp_path / "a", {}, {"a": "b"})
    assert load_file(tmp_path / "a") == {}


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 10**6])
def test_chunks_do_not_show(tmp_path, monkeypatch, chunk_bytes):
    tensors = {"a": torch.arange(50.0), "b": torch.arange(3, dtype=torch.uint8)}
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    write_tensors(tmp_path / "ours", tensors, {"a": "b"})
    save_file(tensors, tmp_path / "theirs", metadata={"a": "b"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_place_that_takes_parts_only_gets_all(tmp_path):
    class Halting(io.FileIO):
        def write(self, chunk):
            return super().write(chunk[:5])

    with Halting(tmp_path / "a", "w") as out:
        module._write_all(out, memoryview(b"a line of more than five"))
    assert (tmp_path / "a").read_bytes() == b"a line of more than five"


def test_type_that_the_format_does_not_know_is_refused_before_a_byte_is_written(tmp_path):
    with pytest.raises(KeyError):
        write_tensors(tmp_path / "a", {"a": torch.zeros(2, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_res_10_wrappers_leave_no_trace_in_names(prefix):
    tensors = {f"{prefix}out.0.weight": torch.zeros(1), f"{prefix}modules.module.bias/exp_avg": torch.ones(1)}
    assert list(bare_names(tensors, "x")) == ["out.0.weight", "modules.module.bias/exp_avg"]


def test_res_10_part_that_was_compiled_leaves_no_trace_either():
    assert list(bare_names({"blocks._orig_mod.0._orig_mod.weight": torch.zeros(1)}, "x")) == ["blocks.0.weight"]


def test_res_10_two_of_one_name_are_refused():
    with pytest.raises(RunError, match=r"FILE holds a\.b twice, once as module\.a\.b"):
        bare_names({"a.b": torch.zeros(1), "module.a.b": torch.zeros(1)}, "FILE")
