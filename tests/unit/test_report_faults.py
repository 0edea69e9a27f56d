"""What went wrong in a run is said in plain words, once, and only while it is so."""

import pytest

from iddpm.report.content import RunReport
from iddpm.report.faults import fault_warnings, happenings, skipped_steps
from iddpm.report.summary import status, warnings

START = {"event": "start", "step": 0}


def step(number, **more):
    return {"event": "step", "step": number, "loss": 1.0, **more}


BACK = {
    "event": "rollback", "step": 30, "to_step": 20, "rollbacks": 1, "lr_factor": 0.5, "reason": "10 steps in a row",
}  # fmt: skip
FAILED = {"event": "failed", "step": 40, "reason": "the loss is not finite"}
UNSAVED = {"event": "checkpoint_failed", "step": 30, "path": "x", "reason": "No space left on device"}
INIT = {
    "event": "init", "step": 0, "source": "runs/old", "source_step": 9000, "loaded": 40, "not_loaded": ["label_emb"],
    "unused": [], "labels": None,
}  # fmt: skip


def test_a_run_left_alone_has_nothing_to_tell():
    events = [START, step(10), {"event": "checkpoint", "step": 10}, {"event": "end", "step": 10}]
    assert fault_warnings(events) == []
    assert happenings(events) is None


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([BACK], "went back to a checkpoint once, as losses or gradients were no longer finite: from step 30 to 20. Since "
         "then the learning rate is 0.5 times what the settings say."),
        ([{**BACK, "lr_factor": 1.0}], "from step 30 to 20."),
        ([BACK, {**BACK, "lr_factor": 0.25}], "2 times, as losses or gradients were no longer finite: from step 30 to 20, "
         "from step 30 to 20. Since then the learning rate is 0.25 times"),
        ([step(10, skipped=1)], "1 training step was skipped, as the loss or the gradient was not finite"),
        ([step(10, skipped=2), step(20, skipped=3)], "5 training steps were skipped"),
        ([step(10, skipped=2, loss_scale=8.0)], "In fp16 a few are how the loss scale is found."),
        ([FAILED], "Training failed at step 40: the loss is not finite."),
        ([UNSAVED], "A checkpoint could not be written, at last that of step 30 (No space left on device); none has been"),
        ([UNSAVED, UNSAVED, {"event": "checkpoint", "step": 40}], "2 checkpoints could not be written, at last that of "
         "step 30 (No space left on device); one of step 40 has been since."),
        ([INIT], "not start from random weights but from those of step 9,000 in runs/old. Not loaded, so random at the "
         "start: label_emb."),
        ([{**INIT, "source_step": None, "not_loaded": []}], "but from those in runs/old."),
    ],
)  # fmt: skip
def test_every_fault_is_one_sentence_or_two(events, words):
    (told,) = fault_warnings([START, *events])
    assert words in told
    assert told in warnings(RunReport(name="r", events=[START, *events, step(50)]), 0) or events == [FAILED]


def test_long_lists_are_cut():
    (told,) = fault_warnings([{**INIT, "not_loaded": [f"layer{i}" for i in range(9)]}])
    assert "layer3 and 5 more" in told
    assert "layer4" not in told
    (told,) = fault_warnings([BACK] * 7)
    assert told.count("from step") == 4
    assert "…" in told


def test_a_failure_that_was_overcome_is_in_the_table_alone():
    events = [START, FAILED, {"event": "resume", "step": 20}, step(50)]
    assert fault_warnings(events) == []
    assert [row[:2] for row in happenings(events).rows] == [["40", "failed"]]


def test_steps_are_counted_wherever_they_are_told():
    assert skipped_steps([step(10, skipped=2), BACK, step(20, skipped=1)]) == 3
    assert skipped_steps([step(10)]) == 0


def test_everything_that_happened_stands_in_the_order_it_did():
    wait = {"event": "data_wait", "step": 20, "share": 0.25, "cure": "copy it"}
    micro = {"event": "micro_batch", "step": 10, "micro_batch_size": 16, "reason": "out of memory"}
    hook = {"event": "hook_failed", "step": 25, "reason": "No space left on device"}
    table = happenings([START, INIT, micro, wait, hook, step(30, skipped=10, loss=None), BACK, UNSAVED, FAILED])
    assert [list(row) for row in table.rows] == [
        ["0", "started from other weights", "runs/old; not loaded: label_emb"],
        ["10", "micro-batch of 16", "out of memory"],
        ["20", "waited for data", "25% of the time; copy it"],
        ["25", "a preview or an evaluation left out", "No space left on device"],
        ["30", "10 steps skipped", "since the entry before; loss or gradient not finite"],
        ["30", "went back to step 20", "10 steps in a row; learning rate times 0.5"],
        ["30", "checkpoint not written", "No space left on device"],
        ["40", "failed", "the loss is not finite"],
    ]


def test_a_long_table_says_that_it_is_cut():
    table = happenings([step(number, skipped=1) for number in range(1, 101)])
    assert len(table.rows) == 61
    assert list(table.rows[-1])[1] == "and 40 more"


@pytest.mark.parametrize(
    ("events", "state", "words"),
    [
        ([step(30), BACK], "going", "at step 20 of 50: still going, or stopped without a word"),
        ([step(30), BACK, step(25)], "going", "at step 25 of 50: still going, or stopped without a word"),
        ([step(40), FAILED, {"event": "checkpoint", "step": 20}], "failed", "failed at step 40 of 50"),
        ([step(40), FAILED, {"event": "resume", "step": 20}], "going", "at step 20 of 50: still going, or stopped"),
    ],
)
def test_status_knows_failures_and_rollbacks(events, state, words):
    found, said = status(RunReport(name="r", events=[START, *events], train_steps=50))
    assert (found, said[: len(words)]) == (state, words)
