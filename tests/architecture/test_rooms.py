"""Who may import whom: a room knows the rooms below it and none beside it (the design's section 4)."""

import pytest

from architecture.source import FILES, imported, module_name

# From the top; rooms of one row do not know one another.
ROWS = [
    {"cli"},
    {"commands"},
    {"experiment"},
    {"training", "sampling", "evaluation", "cost", "report"},
    {"artifacts"},
    {"diffusion", "networks", "data"},
    {"runtime"},
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}


def room_of(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "iddpm" else None


def rooms_seen_from(file):
    return {room for name in imported(file) if (room := room_of(name)) is not None}


def test_every_file_is_in_a_room_or_at_the_door():
    rooms = {room_of(module_name(file)) for file in FILES} - {None, "__main__"}
    assert rooms == set(ROW_OF)


@pytest.mark.parametrize("room", sorted(ROW_OF))
def test_room_imports_downwards_only(room):
    for file in FILES:
        if room_of(module_name(file)) == room:
            for seen in rooms_seen_from(file) - {room}:
                assert ROW_OF[seen] > ROW_OF[room], f"{module_name(file)} imports from {seen}"


def test_report_and_artifacts_see_plain_data_only():
    for file in FILES:
        if room_of(module_name(file)) in ("report", "artifacts"):
            assert not rooms_seen_from(file) & {"diffusion", "networks", "data"}, module_name(file)


def test_training_knows_no_sampler_network_or_objective():
    allowed = {"iddpm.diffusion.objective"}  # Terms: what a task gives back
    for file in FILES:
        if room_of(module_name(file)) == "training":
            seen = {name for name in imported(file) if room_of(name) in ("diffusion", "networks")}
            assert seen <= allowed, module_name(file)


def test_mathematics_and_networks_do_no_input_or_output():
    forbidden = {"json", "pathlib", "os", "io", "shutil", "safetensors", "PIL", "subprocess"}
    for file in FILES:
        if room_of(module_name(file)) in ("diffusion", "networks"):
            assert not {name.partition(".")[0] for name in imported(file)} & forbidden, module_name(file)
