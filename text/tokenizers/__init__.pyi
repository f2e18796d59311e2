from .characters import ByteTokenizer as ByteTokenizer
from .characters import CharacterTokenizer as CharacterTokenizer
from .characters import Text8Tokenizer as Text8Tokenizer
from .subwords import BertTokenizer as BertTokenizer
from .subwords import GPT2Tokenizer as GPT2Tokenizer
from .subwords import JSONTokenizer as JSONTokenizer
from .subwords import SubwordTokenizer as SubwordTokenizer
