"""The transformers of MDLM and BD3-LM (DiT), an autoregressive variant, and published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from seqdiff.backbones.base import Backbone, RunTokens, check_cache_condition
from seqdiff.backbones.hub import check_tokens, read_tokens
from seqdiff.backbones.layers import (
    LabelEmbedding,
    SigmaEmbedding,
    load_in_place_of,
    require_positive,
    shifted,
)
from seqdiff.backbones.transformer.block_diffusion import Layers, Pair, choose_pass
from seqdiff.backbones.transformer.cache import CausalCache, TransformerCache
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
from seqdiff.types import Inputs, Signal


class _Stack(Backbone):
    """The base of both transformers: embedding, blocks and head.

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
            inputs: Outputs at real positions are the same as without padding; those at padding are
                0. Padding takes no computation, except under ``torch.compile``. In a causal
                network, it must come before the first or after the last real position of a row. A
                network that is not time-conditioned ignores ``sigma``; others clamp it to at most
                -log 1e-3.
            layer: See ``Backbone.body``.

        Raises:
            ValueError: If padding and tokens differ in shape, or a time-conditioned network gets no
                ``sigma``.
        """
        self._require_padding(inputs)
        condition = self.condition(inputs)
        signal = self.embedded_signal(inputs.signal, len(h))
        h = h if signal is None else h + signal
        layout = lay_out(inputs.tokens, inputs.padding, causal=self.causal)
        x, rotary = layout.pack(h), self._rotary(layout.positions)
        for block in self.blocks[:layer]:
            x = block(x, condition, rotary, layout)
        return layout.unpack(x)

    def condition(self, inputs: Inputs) -> Float[Tensor, "#B C"] | None:
        """Compute the vectors that modulate the blocks; ``None`` without modulation."""
        return None

    def _states(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None
    ) -> Float[Tensor, "B L D"]:
        return self.head.normalised(h, inputs) if layer is None else h

    def _rotary(self, positions: Tensor) -> Rotary:
        head_dim = self.config.d_model // self.config.n_heads
        return rotary_table(positions, head_dim, self.embedding.weight)

    def _layers(self, inputs: Inputs) -> Layers:
        blocks = cast(Sequence[Block], self.blocks)
        signal = self.embedded_signal(inputs.signal, len(inputs.tokens))
        return Layers(self.embedding, self._rotary, blocks, self.condition(inputs), signal)

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
                f"got {tuple(padding.shape)}; pass one flag per token"
            )


class Transformer(_Stack):
    """The network of Sahoo et al. 2024, arXiv:2406.07524, and Arriola et al. 2025, 2503.09573.

    Attention is bidirectional, with rotary positions. Every norm and branch is modulated by a
    condition (adaLN-zero; Peebles and Xie 2023, arXiv:2212.09748). The condition is an embedding of
    the noise level sigma = -log alpha(t), plus an embedding of the row's label if the network has
    classes. A network that is not time-conditioned embeds sigma = 0, so the modulation is the same
    at every time.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Number of attention heads; ``d_model`` must be a multiple of ``2 * n_heads``.
        num_embeddings: Number of ids that can be embedded; K + 1 with a mask.
        num_logits: Number of ids that are scored, which are the first ones; K with a mask.
        num_classes: Number of classes that a row can be labelled with; ``None`` without classes.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
        cond_dim: Width of the condition, the vector that modulates the blocks.
        dropout: Probability with which training drops an entry of a branch's output.
        max_length: Length of the longest row.
        time_conditioned: Whether the network reads the noise level, which ``Denoiser`` gives it.

    Attributes:
        config: The checked arguments.
        block_fields: Additional fields of a published BD3-LM; ``None`` unless loaded from one.

    Raises:
        ValueError: If an argument is out of range.
    """

    reads_blocks = reuses_keys = True
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
        num_signals: int | None = None,
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
                num_signals=num_signals,
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
        # Drawn last, so that the other initial weights do not depend on it.
        if num_classes is not None:
            self.label_embedding = LabelEmbedding(num_classes, cond_dim)
        self.add_signals(num_signals, d_model)

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
        """Score every position given its block of x_t and the earlier blocks of x0, in one pass.

        x_t and x0 have the same positions. Logits at padding are 0. If a block is as long as the
        row, x0 is not read, and the result is that of ``forward``. Source: see
        ``block_diffusion_mask``.

        Raises:
            ValueError: If the block size is not a positive integer, rows are longer than
                ``max_length``, an argument differs from x_t in shape, padding comes before a token,
                the network is time-conditioned (which is not supported, since each block has its
                own noise level), there are labels and the network has no classes, or a signal does
                not fit the network.
        """
        owner, x_t, padding = self.config.owner, inputs.tokens, inputs.padding
        self._require_time_free("block_logits")
        require_positive(owner, "block_size", block_size)
        self._require_length(x_t.shape[1])
        if x0.shape != x_t.shape:
            raise ValueError(
                f"{owner}.x0 must have the shape {tuple(x_t.shape)} of x_t, got "
                f"{tuple(x0.shape)}; pass the rows that x_t was made from"
            )
        self._require_padding(inputs)
        if padding is not None and not torch.compiler.is_compiling():
            if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
                raise ValueError(
                    f"{owner}.padding must come after the last token of a row, got a token after "
                    "padding; blocks are counted from the first position, so move padding to the "
                    "end"
                )
        self.check_condition(inputs)
        pair = Pair(x_t, x0, block_size, padding)
        return self.head(choose_pass(pair)(self._layers(inputs), pair), inputs, where)

    def block_cache(
        self,
        batch_size: int,
        block_size: int,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> TransformerCache:
        """Create an empty cache for scoring rows of any length block by block.

        Args:
            batch_size: See ``Backbone.block_cache``.
            block_size: See ``Backbone.block_cache``.
            window: Number of earlier tokens that attention may look back at, a multiple of
                ``block_size``. By default, the window and one block together are at most
                ``max_length`` long.
            label: See ``Backbone.block_cache``.
            signal: See ``Backbone.block_cache``.

        Raises:
            ValueError: If a size is not a positive integer, the window is not a multiple of the
                block size, there is not one label per row, there are labels and the network has no
                classes, a signal does not fit, or the network is time-conditioned.
        """
        owner = self.config.owner
        self._require_time_free("block_cache")
        require_positive(owner, "batch_size", batch_size)
        require_positive(owner, "block_size", block_size)
        if window is None:
            window = max(0, self.config.max_length - block_size) // block_size * block_size
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise ValueError(f"{owner}.window must be an integer of at least 0, got {window!r}")
        if window % block_size:
            raise ValueError(
                f"{owner}.window must be a multiple of block_size = {block_size}, got {window}; "
                f"{window - window % block_size} is the next below"
            )
        inputs = check_cache_condition(self, batch_size, label, signal)
        layers = self._layers(inputs.to(self.embedding.weight.device))
        return TransformerCache(layers, self.head, batch_size, block_size, window)

    def _require_time_free(self, method: str) -> None:
        if self.time_conditioned:  # each block has its own noise level
            raise ValueError(
                f"{self.config.owner}.{method} must be called on a time-free network, got one with "
                "time_conditioned=True; build it with time_conditioned=False"
            )

    @staticmethod
    def from_hub(directory: str | Path) -> Transformer:
        """Load a published MDLM or BD3-LM.

        Called with tokens and sigma, an MDLM returns the logits of the published network; a BD3-LM
        returns them from ``block_logits``. Ids are those of the published vocabulary, the last of
        which is the mask. The mask is scored too.

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
        load_in_place_of(model, state)
        return model.eval()

    def to_hub(self, directory: str | Path) -> None:
        """Write the network in the published format, where every embedded id is also scored.

        Ids that the network does not score, such as the mask, get the score 0. The same is true of
        the mask in published networks, since the SUBS parameterization ignores its score. A network
        with ``block_fields`` is written as a BD3-LM, any other as an MDLM.

        Args:
            directory: Folder, created if it does not exist.

        Raises:
            OSError: If a file cannot be written. Every file in the folder is then either the
                complete old or the complete new one.
            ValueError: If the network has classes or signals, which the format does not support.
        """
        if self.num_classes is not None or self.num_signals is not None:
            raise ValueError(
                f"Transformer.to_hub must be given a network without classes and signals, got "
                f"{self.num_classes} classes and {self.num_signals} signals; the published format "
                "has neither, so keep the run directory"
            )
        write_hub(directory, self.config, self.block_fields, self.state_dict())


class AutoregressiveTransformer(_Stack):
    """A causal transformer: the blocks of ``Transformer`` without modulation.

    The logits at position l are the distribution of token l given the tokens before it. The network
    shifts its input right by one position, with the last embedded id, the mask, as the start
    symbol. One pass over a clean row therefore gives its exact log-likelihood. Used as a denoiser,
    the network predicts a masked token from the tokens to its left. Source: Sahoo et al. 2024,
    arXiv:2406.07524, appendix D.

    Args:
        d_model: Model width.
        n_layer: Number of blocks.
        n_heads: Number of attention heads; ``d_model`` must be a multiple of ``2 * n_heads``.
        num_embeddings: Number of ids that can be embedded, K + 1; the last one is the mask.
        num_logits: Number of ids that are scored, K, which are the first ones.
        num_signals: Number of values that a row can be conditioned on; ``None`` without signals.
        dropout: Probability with which training drops an entry of a branch's output.
        max_length: Length of the longest row.

    Attributes:
        config: The checked arguments.

    Raises:
        ValueError: If an argument is out of range.
    """

    causal = caches_prefix = True

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        n_heads: int,
        *,
        num_embeddings: int,
        num_logits: int,
        num_signals: int | None = None,
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
                num_signals=num_signals,
            )
        )
        self.blocks = nn.ModuleList(Block(d_model, n_heads, dropout) for _ in range(n_layer))
        self.head = Head(d_model, num_logits)
        self.add_signals(num_signals, d_model)

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed at each position the token before it; the last token of a row is not read.

        Raises:
            ValueError: If rows are longer than ``max_length``, or padding differs in shape.
        """
        self._require_length(inputs.tokens.shape[1])
        self._require_padding(inputs)
        start = self.config.num_embeddings - 1
        return self.embedding(shifted(inputs.tokens, inputs.padding, start))

    def block_cache(
        self,
        batch_size: int,
        block_size: int = 1,
        *,
        window: int | None = None,
        label: Int[Tensor, " B"] | None = None,
        signal: Signal | None = None,
    ) -> CausalCache:
        """Create an empty cache for scoring rows token by token.

        Args:
            batch_size: See ``Backbone.block_cache``.
            block_size: Must be 1.
            window: Number of earlier tokens that attention may look back at; by default, all that
                fit into ``max_length``.
            label: Must be ``None``, since the network has no classes.
            signal: See ``Backbone.block_cache``.

        Raises:
            ValueError: If a size is out of range, there are labels, or a signal does not fit.
        """
        owner = self.config.owner
        require_positive(owner, "batch_size", batch_size)
        if block_size != 1:
            raise ValueError(
                f"{owner}.block_size must be 1, since the network predicts one token at a time, "
                f"got {block_size}; build a Transformer for longer blocks"
            )
        window = self.config.max_length - 1 if window is None else window
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise ValueError(f"{owner}.window must be an integer of at least 0, got {window!r}")
        device = self.embedding.weight.device
        inputs = check_cache_condition(self, batch_size, label, signal)
        cache = TransformerCache(self._layers(inputs.to(device)), self.head, batch_size, 1, window)
        first = torch.full((batch_size, 1), self.config.num_embeddings - 1, device=device)
        return CausalCache(cache, first)


class PublishedTransformer(Transformer):
    """A ``Transformer`` with published weights, whose head does not score the mask.

    The published network scores the mask too, but its SUBS parameterization sets that score to
    ``-inf`` before the softmax (Sahoo et al. 2024, arXiv:2406.07524, section 3.2.3). ``Denoiser``
    gives the same distribution without the score of the mask. All weights can be trained.

    Args:
        checkpoint: Folder that holds config.json and model.safetensors.
        published_shape: See ``PublishedBackbone``; a run sets it.
        num_embeddings: K + 1; the last id is the mask, as in the published network.
        num_logits: K.
        blocks: Whether the folder holds a BD3-LM rather than an MDLM.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is damaged, the folder holds the other kind of network, the weights do
            not fit the configuration, or the vocabulary has another size.
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
        load_in_place_of(self, state)

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell whether an argument of the constructor names a file, see ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def published_shape(self) -> dict[str, object]:
        """The value of ``published_shape`` that builds the same network without the folder."""
        return asdict(self.config)

    def check_tokens(self, run: RunTokens) -> None:
        """Check the run's tokens against the tokenizer files in the folder, if there are any."""
        found = read_tokens(Path(self.checkpoint))
        if found is not None:
            check_tokens("PublishedTransformer.checkpoint", *found, run)
