from .characters import ByteTokenizer as ByteTokenizer
from .characters import CharacterTokenizer as CharacterTokenizer
from .characters import Text8Tokenizer as Text8Tokenizer
from .characters import TextTokenizer as TextTokenizer
from .characters import digest as digest
from .subwords import BertTokenizer as BertTokenizer
from .subwords import GPT2Tokenizer as GPT2Tokenizer
