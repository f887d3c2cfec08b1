"""What a training loop has beside its steps: ``pg.training``.

Here: the public names, once.
Not here: any code. Start reading at `fitting.py`.
"""

from polygrad.training.csv_log import CSVLog, read_csv
from polygrad.training.early_stopping import EarlyStopping
from polygrad.training.fitting import Fitted, fit
from polygrad.training.interruption import Interruption
from polygrad.training.plotting import plot_losses
from polygrad.training.progress import Progress
from polygrad.training.run import Reducer
from polygrad.training.tensorboard import TensorBoardLog

__all__ = [
    "CSVLog",
    "EarlyStopping",
    "Fitted",
    "Interruption",
    "Progress",
    "Reducer",
    "TensorBoardLog",
    "fit",
    "plot_losses",
    "read_csv",
]
