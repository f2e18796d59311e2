from .datamodules import FastaDataModule as FastaDataModule
from .datamodules import HG38DataModule as HG38DataModule
from .entropy import entropy_rate as entropy_rate
from .sources import MarkovGenome as MarkovGenome
from .synthetic import ConsensusMotif as ConsensusMotif
from .synthetic import SyntheticDataModule as SyntheticDataModule
from .synthetic import SyntheticGenome as SyntheticGenome
from .windows import WindowDataset as WindowDataset
