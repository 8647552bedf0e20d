"""Training: recipes, the trainer, checkpoints and runs on disk."""

from binep.training.trainer import (
    Progress,
    Streams,
    Trainer,
    evaluate,
    random_streams,
    troubles,
)

__all__ = ["Progress", "Streams", "Trainer", "evaluate", "random_streams", "troubles"]
