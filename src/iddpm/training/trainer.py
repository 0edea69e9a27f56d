"""The training loop."""

from iddpm.data.loader import Batches, Prefetch
from iddpm.runtime.errors import DataError
from iddpm.runtime.precision import arithmetic
from iddpm.training.session import Outcome, Session

__all__ = ["train"]


def train(session: Session, batches: Batches) -> Outcome:
    """Train to the last step, or until a signal, the deadline or a file RUN/stop asks to stop; a checkpoint is left.

    Raises:
        TrainingError: Losses or gradients are not finite any more, or memory has run out; the last good checkpoint stands.
        DataError: Pictures cannot be read any more; a checkpoint is left.
        OutputError: The last checkpoint cannot be written.
    """
    state, config, agreement = session.state, session.config, session.agreement
    if state.step < config.steps:
        session.listener.progress("training", state.step, config.steps, "")
    else:
        agreement.stop.asked()  # a file that asks has its answer, and goes
    if session.save_first:
        session.keeper.begin()
    with agreement.stop, arithmetic(config.precision, session.world.device):
        try:
            while True:
                agreement.meet()
                rows = session.world.rows(config.batch_size)
                with Prefetch(batches, state.step, config.steps, rows=rows) as stream:
                    went_back, asked = False, None
                    while not went_back and state.step < config.steps and (asked := agreement.asked()) is None:
                        went_back = session.step(stream)
                if not went_back:
                    return session.end(asked)
        except DataError as error:
            session.keep(error.what)
            raise
