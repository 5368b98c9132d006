"""The trainer's side of a rollcast job, for Python: numpy always, PyTorch where it is there.

    mpirun -np 1 python train.py : -np N rollcast worker -c job.toml

    import rollcast

    with rollcast.Client("job.toml") as client:
        for step in range(100):
            batch = client.rollout(prompts, group_size=8, sampling={"temperature": 1.0})
            loss = my_step(model, batch.completed().padded(arrays="torch"))
            client.publish(model.state_dict())

`client.py` has the calls, `trajectory.py` what comes back, `tensors.py` the rules by which names and
tensors become an update.
"""

from ._library import VERSION as __version__
from ._library import RollcastError
from .client import Client, JobStats, Manifest, Score, SyncReport, TensorInfo, UpdateError
from .trajectory import Batch, PaddedBatch, Trajectory

__all__ = [
    "Batch",
    "Client",
    "JobStats",
    "Manifest",
    "PaddedBatch",
    "RollcastError",
    "Score",
    "SyncReport",
    "TensorInfo",
    "Trajectory",
    "UpdateError",
    "__version__",
]
