from .bert import BertBackbone as BertBackbone
from .models import load_config as load_config
from .models import load_model as load_model
from .models import load_tokenizer as load_tokenizer
from .models import only_what_is_here as only_what_is_here
from .models import short as short
from .models import why_offline as why_offline
