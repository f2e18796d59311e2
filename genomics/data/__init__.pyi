from .datamodules import FastaDataModule as FastaDataModule
from .datamodules import HG38DataModule as HG38DataModule
from .entropy import entropy_rate as entropy_rate
from .synthetic import SyntheticDataModule as SyntheticDataModule
from .windows import WindowDataset as WindowDataset
