"""Training: recipes, the trainer, checkpoints and runs on disk."""

from binep.training.trainer import (
    Progress,
    Streams,
    Trainer,
    diagnose,
    evaluate,
    random_streams,
)

__all__ = ["Progress", "Streams", "Trainer", "diagnose", "evaluate", "random_streams"]
