import shutil
from pathlib import Path

import pytest

from iddpm.artifacts.run_dir import open_run_dir
from iddpm.commands.draw import SampleRequest
from iddpm.commands.likelihood import LikelihoodRequest, likelihood
from iddpm.commands.report import gather, report
from iddpm.commands.sample import sample
from iddpm.commands.train import train
from iddpm.data.store import open_store
from iddpm.diffusion.samplers import Ddim
from iddpm.diffusion.spacing import EvenSteps
from iddpm.runtime.errors import ConfigError, OutputError, RunError
from tiny import Lines, tiny_config


@pytest.fixture(scope="module")
def run(small_digits, tmp_path_factory):
    """A run with everything that a report shows: previews, two sets of samples, a bound."""
    out = tmp_path_factory.mktemp("runs") / "everything"
    train(tiny_config(small_digits, timesteps=6, train_steps=4, preview_every=4), out)
    for steps in (2, 3):
        sample(out, SampleRequest(num=5, steps=EvenSteps(steps), sampler=Ddim()))
    likelihood(out, LikelihoodRequest())
    return out


def test_everything_in_the_run_is_gathered(run, small_digits):
    told = gather(open_run_dir(run))
    assert told.name == "everything"
    assert told.recipe == "digits-8"
    assert [sample.steps for sample in told.samples] == [2, 3]
    assert told.samples[0].images.shape == (5, 8, 8, 1)
    assert [preview.step for preview in told.previews] == [4]
    assert len(told.evaluations) == 1
    assert told.train_steps == 4
    assert told.parameters > 1e5
    assert len(told.events) == 1 + 4 + 1 + 1 + 1  # start, steps, preview, checkpoint, end
    assert {"prepare", "sample", "likelihood"} >= set(told.outside_seconds) >= {"sample", "likelihood"}
    store = open_store(small_digits)
    assert told.held_out.images.shape == (len(store.held_out), 8, 8, 1)


def test_page_is_written_into_the_run(run):
    facts = report([run])
    page = Path(facts["path"])
    assert page == run / "report" / "index.html"
    assert facts["bytes"] == page.stat().st_size > 10_000
    text = page.read_text(encoding="utf-8")
    assert "everything" in text
    assert "digits-8" in text
    assert "bits" in text
    assert report([run])["path"] == facts["path"]


def test_run_without_samples_or_bound_has_a_page_too(small_digits, tmp_path):
    train(tiny_config(small_digits, train_steps=1), tmp_path / "bare")
    assert Path(report([tmp_path / "bare"])["path"]).is_file()


def test_train_steps_are_those_asked_for_last(run, small_digits, tmp_path):
    longer = shutil.copytree(run, tmp_path / "longer")
    train(tiny_config(small_digits, timesteps=6, train_steps=5, preview_every=4), longer)
    assert gather(open_run_dir(longer)).train_steps == 5


def test_store_that_is_gone_costs_the_held_out_pictures_alone(run, tmp_path):
    moved = shutil.copytree(run, tmp_path / "moved")
    text = (moved / "journal.jsonl").read_text()
    (moved / "journal.jsonl").write_text(text.replace('"store": "', '"store": "/gone'))
    told = Lines()
    facts = report([moved], listener=told)
    assert "no held-out pictures" in told.text
    assert Path(facts["path"]).is_file()


def test_several_runs_make_one_page_elsewhere(run, trained, tmp_path):
    with pytest.raises(ConfigError, match="several runs") as refused:
        report([run, trained])
    assert "--out" in str(refused.value.fix)
    facts = report([run, trained], tmp_path / "both")
    text = Path(facts["path"]).read_text(encoding="utf-8")
    assert Path(facts["path"]).parent == tmp_path / "both"
    assert "everything" in text
    assert "trained" in text
    assert len(facts["runs"]) == 2


def test_what_cannot_be_reported_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="no run"):
        report([])
    with pytest.raises(RunError, match="missing"):
        report([run, tmp_path / "missing"], tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        report([run], tmp_path / "file" / "page")
