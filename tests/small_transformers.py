"""A transformer small enough for float64, with weights that break the symmetry of initial ones."""

import torch

from seqdiff.backbones import Transformer

K = 4


def build(seed: int = 0, **options: object) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"num_embeddings": K + 1, "num_logits": K, "cond_dim": 6, "max_length": 32}
    model = Transformer(12, 3, 2, **{**sizes, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def draw_tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(K + 1, (batch, length), generator=generator)
