"""The transformers of MDLM and BD3-LM (DiT): denoiser, autoregressive twin, published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone, RunTokens
from seqdiff.backbones.hub import check_tokens, read_tokens
from seqdiff.backbones.layers import LabelEmbedding, SigmaEmbedding, require_positive, shifted
from seqdiff.backbones.transformer.block_diffusion import Layers, Pair, choose_pass
from seqdiff.backbones.transformer.cache import TransformerCache
from seqdiff.backbones.transformer.config import TransformerConfig, TransformerShape
from seqdiff.backbones.transformer.hub import (
    BlockDiffusionFields,
    read_config,
    read_weights,
    write_hub,
)
from seqdiff.backbones.transformer.layers import (
    AdaptiveBlock,
    AdaptiveHead,
    Block,
    Head,
    Rotary,
    rotary_table,
    token_embedding,
)
from seqdiff.backbones.transformer.packing import lay_out
from seqdiff.files import names_files
from seqdiff.types import Inputs


class _Stack(Backbone):
    """Embedding, blocks and head: what both transformers have.

    Attributes:
        config: The checked arguments.
    """

    config: TransformerShape
    embedding: nn.Embedding
    blocks: nn.ModuleList
    head: Head

    def __init__(self, config: TransformerShape) -> None:
        super().__init__()
        self.config = config
        self.width, self.num_logits = config.d_model, config.num_logits
        self.max_length = config.max_length
        self.embedding = token_embedding(config.num_embeddings, config.d_model)

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks.

        Args:
            h: See ``Backbone.body``.
            inputs: Positions of padding cost nothing and get 0; outputs at the real ones are those
                of the row alone. A causal network takes padding before the first or after the last
                real position of a row. A time-free network ignores ``sigma``; others clamp it at
                -log 1e-3.
            layer: See ``Backbone.body``.

        Raises:
            ValueError: If padding has another shape than tokens, or a time-conditioned network gets
                no ``sigma``.
        """
        self._require_padding(inputs)
        condition = self.condition(inputs)
        layout = lay_out(inputs.tokens, inputs.padding, causal=self.causal)
        x, rotary = layout.pack(h), self._rotary(layout.positions)
        for block in self.blocks[:layer]:
            x = block(x, condition, rotary, layout)
        return layout.unpack(x)

    def condition(self, inputs: Inputs) -> Float[Tensor, "#B C"] | None:
        """Compute what modulates the blocks; ``None`` if nothing does."""
        return None

    def _states(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L D"]:
        return self.head.normalised(h, inputs) if layer is None else h

    def _rotary(self, positions: Tensor) -> Rotary:
        head_dim = self.config.d_model // self.config.n_heads
        return rotary_table(positions, head_dim, self.embedding.weight)

    def _require_length(self, length: int) -> None:
        owner, most = self.config.owner, self.config.max_length
        if length > most:
            raise ValueError(
                f"{owner}.tokens must be at most max_length = {most} long, got {length}; "
                "cut the rows, or build it with a larger max_length"
            )

    def _require_padding(self, inputs: Inputs) -> None:
        tokens, padding = inputs.tokens, inputs.padding
        if padding is not None and padding.shape != tokens.shape:
            raise ValueError(
                f"{self.config.owner}.padding must have the shape {tuple(tokens.shape)} of tokens, "
                f"got {tuple(padding.shape)}; pass one flag a token"
            )


class Transformer(_Stack):
    """The network of Sahoo et al. 2024, arXiv:2406.07524, and Arriola et al. 2025, 2503.09573.

    Bidirectional attention with rotary positions; every norm and branch is modulated by a condition
    (adaLN-zero; Peebles and Xie 2023, arXiv:2212.09748). The condition is an embedding of the noise
    sigma = -log alpha(t), or of sigma = 0 in a time-free network, where modulation is a learned
    bias and gate; a row's label adds a vector to it.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Number of attention heads, which divide the width evenly.
        num_embeddings: Ids that can be embedded; K + 1 with a mask.
        num_logits: Ids that are scored, the first ones; K with a mask.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
        cond_dim: Width of the condition.
        dropout: Probability that an entry of a branch is dropped, while training.
        max_length: Longest row.
        time_conditioned: Whether the network reads the noise level, which ``Denoiser`` gives it.

    Attributes:
        config: The checked arguments.
        block_fields: Further fields of a BD3-LM folder; ``None`` unless it was loaded from one.

    Raises:
        ValueError: If an argument is out of range.
    """

    reads_blocks = True
    config: TransformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    head: AdaptiveHead

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        n_heads: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_classes: int | None = None,
        cond_dim: int = 128,
        dropout: float = 0.1,
        max_length: int = 1024,
        time_conditioned: bool = False,
    ) -> None:
        super().__init__(
            TransformerConfig(
                d_model=d_model,
                n_layer=n_layer,
                n_heads=n_heads,
                dropout=dropout,
                max_length=max_length,
                num_embeddings=num_embeddings,
                num_logits=num_logits,
                cond_dim=cond_dim,
                time_conditioned=time_conditioned,
                num_classes=num_classes,
            )
        )
        self.time_conditioned, self.num_classes = time_conditioned, num_classes
        self.block_fields: BlockDiffusionFields | None = None
        self.sigma_map = SigmaEmbedding(cond_dim)
        self.blocks = nn.ModuleList(
            AdaptiveBlock(d_model, n_heads, dropout, cond_dim) for _ in range(n_layer)
        )
        head = AdaptiveHead(d_model, num_logits, cond_dim, self.condition)
        self.head = head  # pyright: ignore[reportIncompatibleVariableOverride]
        self.label_embedding: LabelEmbedding | None = None
        if num_classes is not None:  # last, so that the other weights do not depend on it
            self.label_embedding = LabelEmbedding(num_classes, cond_dim)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens.

        Raises:
            ValueError: If rows are longer than ``max_length``.
        """
        self._require_length(inputs.tokens.shape[1])
        return self.embedding(inputs.tokens)

    def condition(self, inputs: Inputs) -> Float[Tensor, "#B C"]:
        """Embed the noise level and the label: one vector for each row, or one for all.

        Raises:
            ValueError: If a time-conditioned network gets no ``sigma``.
        """
        tokens = inputs.tokens
        zero = torch.zeros(1, device=tokens.device)
        sigma = self._sigma(inputs) if self.time_conditioned else zero
        condition = F.silu(self.sigma_map(sigma))
        if self.label_embedding is None:
            return condition
        return condition + self.label_embedding(inputs.label, tokens)[:, 0]

    def block_logits(
        self,
        inputs: Inputs,
        x0: Int[Tensor, "B L"],
        block_size: int,
        where: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "*positions K"]:
        """Score every position of x_t given its own block of x_t and the earlier blocks of x0.

        Logits at padding are 0. The halves of [x_t ; x0] have the same positions. With a block as
        long as the row there is no clean half, and it is the ordinary network. Source: see
        ``block_diffusion_mask``.

        Raises:
            ValueError: If the block size is no positive integer, rows are longer than the context,
                an argument has another shape than x_t, padding comes before a token, the network is
                time-conditioned (a block has a noise level of its own), or there are labels and
                the network has no classes.
        """
        owner, x_t, padding = self.config.owner, inputs.tokens, inputs.padding
        self._require_time_free("block_logits")
        require_positive(owner, "block_size", block_size)
        self._require_length(x_t.shape[1])
        if x0.shape != x_t.shape:
            raise ValueError(
                f"{owner}.x0 must have the shape {tuple(x_t.shape)} of x_t, got "
                f"{tuple(x0.shape)}; pass the row that x_t was made of"
            )
        self._require_padding(inputs)
        if padding is not None and not torch.compiler.is_compiling():
            if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
                raise ValueError(
                    f"{owner}.padding must come after the last token of a row, got a token after "
                    "padding; blocks are counted from the first position, so move padding to the "
                    "end"
                )
        self.check_label(inputs.label)
        pair = Pair(x_t, x0, block_size, padding)
        return self.head(choose_pass(pair)(self._layers(inputs), pair), inputs, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
    ) -> TransformerCache:
        """Open an empty cache, to score rows of any length block by block.

        Args:
            batch_size: See ``Backbone.block_cache``.
            block_size: See ``Backbone.block_cache``.
            window: Number of earlier tokens that attention may look back at, a multiple of
                ``block_size``. By default it is what ``max_length`` leaves beside a block.
            label: See ``Backbone.block_cache``.

        Raises:
            ValueError: If a size is no positive integer, the window is no multiple of the block
                size, labels are not as many as rows, the network has no classes for them, or it is
                time-conditioned.
        """
        owner = self.config.owner
        self._require_time_free("block_cache")
        require_positive(owner, "batch_size", batch_size)
        require_positive(owner, "block_size", block_size)
        if label is not None and len(label) != batch_size:
            raise ValueError(
                f"{owner}.label must be one class for each of batch_size = {batch_size} rows, got "
                f"{len(label)}; repeat it"
            )
        if window is None:
            window = max(0, self.config.max_length - block_size) // block_size * block_size
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise ValueError(f"{owner}.window must be an integer of at least 0, got {window!r}")
        if window % block_size:
            raise ValueError(
                f"{owner}.window must be a multiple of block_size = {block_size}, got {window}; "
                f"{window - window % block_size} is the next below"
            )
        self.check_label(label)
        weight = self.embedding.weight
        rows = torch.empty((batch_size, 0), dtype=torch.int64, device=weight.device)
        layers = self._layers(Inputs(rows, label=label))
        return TransformerCache(layers, self.head, batch_size, block_size, window)

    def _layers(self, inputs: Inputs) -> Layers:
        blocks = cast(Sequence[AdaptiveBlock], self.blocks)
        return Layers(self.embedding, self._rotary, blocks, self.condition(inputs))

    def _require_time_free(self, method: str) -> None:
        if self.time_conditioned:  # each block has a noise level of its own
            raise ValueError(
                f"{self.config.owner}.{method} must be called on a time-free network, got one with "
                "time_conditioned=True; build it with time_conditioned=False"
            )

    @staticmethod
    def from_hub(directory: str | Path) -> Transformer:
        """Load published MDLM or BD3-LM weights, strictly.

        An MDLM called with tokens and sigma then returns its published logits, in the ids of the
        hub's vocabulary. The last id is the mask, which is scored too. A BD3-LM returns them from
        ``block_logits``.

        Args:
            directory: Folder that holds config.json and model.safetensors.

        Returns:
            The network in eval mode.

        Raises:
            FileNotFoundError: If a file does not exist.
            ValueError: If a file is damaged, the configuration has an unsupported value, or the
                weights do not fit it.
        """
        config, block_fields = read_config(directory)
        with torch.device("meta"):
            model = Transformer(**asdict(config))
        state, model.block_fields = read_weights(
            directory, config, block_fields, model.state_dict()
        )
        model.load_state_dict(state, assign=True)
        return model.eval()

    def to_hub(self, directory: str | Path) -> None:
        """Write the network in the published format, where every embedded id is also scored.

        Ids that the network does not score, such as the mask, get the score 0, which is what they
        keep in published networks since SUBS never reads it. A network with ``block_fields`` is
        written as a BD3-LM, any other as an MDLM.

        Args:
            directory: Folder, created if it does not exist.

        Raises:
            OSError: If it cannot be written; each file there is then still whole, old or new.
            ValueError: If the network has classes, for which the format has no place.
        """
        if self.num_classes is not None:
            raise ValueError(
                f"Transformer.to_hub must be given a network without classes, got "
                f"{self.num_classes}; the published format has no labels, so keep the run directory"
            )
        write_hub(directory, self.config, self.block_fields, self.state_dict())


class AutoregressiveTransformer(_Stack):
    """The blocks of ``Transformer`` without adaptive norms; a position sees earlier ones only.

    The logits at position l are the distribution of token l given the tokens before it: the input
    is shifted inside, with the last embedded id, the mask, as the start symbol. One pass over a
    clean row therefore gives -log p of the row exactly. As a denoiser it gives, at a masked
    position, the distribution given the tokens to the left. Source: Sahoo et al. 2024,
    arXiv:2406.07524, appendix D.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Number of attention heads, which divide the width evenly.
        num_embeddings: Ids that can be embedded; K + 1, the last of which is the mask.
        num_logits: Ids that are scored, the first ones; K.
        dropout: Probability that an entry of a branch is dropped, while training.
        max_length: Longest row.

    Attributes:
        config: The checked arguments.

    Raises:
        ValueError: If an argument is out of range.
    """

    causal = True

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        n_heads: int,
        *,
        num_embeddings: int,
        num_logits: int,
        dropout: float = 0.1,
        max_length: int = 1024,
    ) -> None:
        super().__init__(
            TransformerShape(
                d_model=d_model,
                n_layer=n_layer,
                n_heads=n_heads,
                dropout=dropout,
                max_length=max_length,
                num_embeddings=num_embeddings,
                num_logits=num_logits,
            )
        )
        self.blocks = nn.ModuleList(Block(d_model, n_heads, dropout) for _ in range(n_layer))
        self.head = Head(d_model, num_logits)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed at each position the token before it; the last token of a row is never read.

        Raises:
            ValueError: If rows are longer than ``max_length``, or padding has another shape.
        """
        self._require_length(inputs.tokens.shape[1])
        self._require_padding(inputs)
        start = self.config.num_embeddings - 1
        return self.embedding(shifted(inputs.tokens, inputs.padding, start))


class PublishedTransformer(Transformer):
    """A ``Transformer`` with the weights of a hub folder, without its head's column for the mask.

    The published network scores the mask too, which its SUBS parameterization sets to ``-inf``
    before it normalises (Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3). Without that column,
    ``Denoiser`` gives the same distribution. Every weight can be trained.

    Args:
        checkpoint: Folder that holds config.json and model.safetensors.
        published_shape: See ``PublishedBackbone``; a run sets it.
        num_embeddings: K + 1; the last id is the mask, here as there.
        num_logits: K.
        blocks: Whether the folder holds a BD3-LM, which denoises a block given those before it.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is damaged, the folder holds no MDLM, the weights do not fit the
            configuration, or the vocabulary has another size.
    """

    def __init__(
        self,
        checkpoint: str,
        published_shape: TransformerConfig | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
        blocks: bool = False,
    ) -> None:
        if published_shape is not None:
            super().__init__(**asdict(published_shape))
            self.checkpoint = checkpoint
            return
        config, block_fields = read_config(checkpoint)
        if (block_fields is not None) != blocks:
            wanted, found = ("a BD3-LM", "an MDLM") if blocks else ("an MDLM", "a BD3-LM")
            raise ValueError(
                f"PublishedTransformer.checkpoint must be {wanted}, got {found} in {checkpoint}; "
                "load it by seqdiff.load(...)"
            )
        if config.num_embeddings != num_embeddings:
            raise ValueError(
                "PublishedTransformer.checkpoint must embed the tokens of data.tokenizer and the "
                f"mask, {num_embeddings}, got {config.num_embeddings} in {checkpoint}; use the "
                "tokenizer of the checkpoint"
            )
        published = Transformer.from_hub(checkpoint)
        with torch.device("meta"):
            super().__init__(**asdict(replace(config, num_logits=num_logits)))
        self.checkpoint = checkpoint
        state = published.state_dict()
        for name in ("head.linear.weight", "head.linear.bias"):
            state[name] = state[name][:num_logits].clone()
        self.load_state_dict(state, assign=True)

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Whether an argument of the constructor names a file, see ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def published_shape(self) -> dict[str, object]:
        """The constructor argument that builds the same network without the folder."""
        return asdict(self.config)

    def check_tokens(self, run: RunTokens) -> None:
        """Compare the run's tokens with the tokenizer files of the folder, if it has any."""
        found = read_tokens(Path(self.checkpoint))
        if found is not None:
            check_tokens("PublishedTransformer.checkpoint", *found, run)
