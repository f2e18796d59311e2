from .discriminator import K as K
from .discriminator import discriminator_auroc as discriminator_auroc
from .discriminator import kmer_frequencies as kmer_frequencies
from .markov import MAX_ORDER as MAX_ORDER
from .markov import MarkovModel as MarkovModel
from .markov import baselines as baselines
from .markov import interpolated_baseline as interpolated_baseline
from .ridge import KmerRidge as KmerRidge
