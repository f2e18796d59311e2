"""Masked language models of transformers as networks for masked diffusion."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from typing_extensions import override

from seqdiff.backbones.base import Backbone, RunTokens
from seqdiff.backbones.hub import check_tokens
from seqdiff.backbones.layers import require_layer
from seqdiff.extras import require_extra
from seqdiff.files import names_files
from seqdiff.pretrained import (
    TokenFacts,
    build_model,
    check_architecture,
    check_num_tokens,
    check_sizes,
    encode_strings,
    load_model,
    load_tokenizer,
    token_facts,
)
from seqdiff.types import Inputs

_OWNER = "HubBackbone.checkpoint"
# A text that shows whether a tokenizer keeps case and accents.
_PROBE = "The Café of the NAIVE"
# Linear layers of transformers, and parts of encoders that no logit depends on.
_LINEAR, _UNUSED = {"Linear", "Conv1D"}, {"pooler", "contact_head"}
_SPLIT_TOLERANCE = 1e-4


class HubShape(TypedDict):
    """Arguments that build a ``HubBackbone`` without its folder.

    Attributes:
        config: Contents of config.json.
        mask_token_id: Id of the mask token.
        before: Ids that open a row; absent in runs whose rows have such ids already.
        after: Ids that close a row.
        reserved: Ids that are never predicted; absent in older runs, which never predict the mask.
    """

    config: dict[str, object]
    mask_token_id: int
    before: NotRequired[list[int]]
    after: NotRequired[list[int]]
    reserved: NotRequired[list[int]]


class HubNetwork(Backbone):
    """A network of transformers that is used as it is.

    Attributes:
        checkpoint: Folder or hub name of the weights and the tokenizer.
        network: The model of transformers.
        transposed: Whether its linear layers store their matrices as ``[in, out]``.
    """

    checkpoint: str
    network: nn.Module
    transposed: ClassVar[bool] = False

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Return whether the value of an argument is a path; see ``seqdiff.run.Located``."""
        return argument == "checkpoint" and names_files(value)

    @property
    def encoder(self) -> nn.Module:
        """The model of transformers without its head."""
        return self.network.get_submodule(_prefix(self.network))

    @property
    def adaptable_layers(self) -> list[str]:
        """Names, within ``network``, of the linear layers that may have adapters."""
        prefix = _prefix(self.network)
        return [
            f"{prefix}.{name}"
            for name, module in self.encoder.named_modules()
            if type(module).__name__ in _LINEAR and not _UNUSED & set(name.split("."))
        ]

    def reload(self) -> None:
        """Load the weights of the checkpoint again.

        Raises:
            OSError: If a folder has no model.
            ValueError: If the weights do not fit.
        """
        fresh = type(self)(
            self.checkpoint, num_embeddings=self.num_logits + 1, num_logits=self.num_logits
        )
        weights = fresh.state_dict()
        for name, own in self.state_dict().items():
            there = weights[name].shape if name in weights else None
            if there != own.shape:
                raise ValueError(
                    f"{type(self).__name__}.checkpoint must be the model that the run was trained "
                    f"from, got {self.checkpoint} with another shape of {name}; restore that folder"
                )
        self.load_state_dict(weights)

    def to_hub(self, directory: str | Path) -> None:
        """Write config.json and model.safetensors as transformers does.

        Args:
            directory: A folder, created if it does not exist; files of these names are replaced.

        Raises:
            OSError: If the folder cannot be written.
        """
        cast(Any, self.network).save_pretrained(directory)

    @property
    def num_layers(self) -> int:
        """Number of layers of the encoder."""
        return _config(self.network).num_hidden_layers

    def _words(self, ids: Tensor) -> Tensor:
        return cast(Any, self.network).get_input_embeddings()(ids)


class HubBackbone(HubNetwork):
    """A masked language model of transformers with its own head.

    The network has K logits, one for each token of its tokenizer, and does not depend on time. The
    mask of the core, id K, is shown to it as its own mask token. It sees each row as its tokenizer
    frames text, such as ``[CLS] row [SEP]``; the frame is neither predicted nor counted. The logits
    of special tokens are ``-inf``, because no text contains them.

    Every architecture that ``AutoModelForMaskedLM`` of transformers has will do if its logits are a
    function of the hidden state of their position, which is checked when the checkpoint is loaded.
    Zero-shot use as a diffusion model: Sahoo et al. 2024, arXiv:2406.07524, appendix on BERT.

    Attributes:
        mask_token_id: Its id of the mask token.
        vocab_size: K.
        positions: Length of the longest row with its frame.
        published_shape: See ``seqdiff.backbones.PublishedBackbone``.
    """

    def __init__(
        self,
        checkpoint: str,
        published_shape: HubShape | None = None,
        *,
        num_embeddings: int,
        num_logits: int,
    ) -> None:
        """Load a checkpoint; missing or unexpected weights raise an error.

        Args:
            checkpoint: A folder with config.json, safetensors and a tokenizer, or a hub name.
            published_shape: See ``PublishedBackbone``; set when a run is loaded.
            num_embeddings: K + 1.
            num_logits: K, the number of tokens of its tokenizer, including special tokens.

        Raises:
            OSError: If a folder has no model.
            ValueError: If the model is not a masked language model of transformers, needs code of
                its own, has a tokenizer without a mask, or has another number of tokens.
        """
        super().__init__()
        if published_shape is None:
            network = load_model(_OWNER, checkpoint, "AutoModelForMaskedLM")
            facts = token_facts(_OWNER, checkpoint, load_tokenizer(_OWNER, checkpoint))
            published_shape = _describe(checkpoint, network, facts)
            check_num_tokens(_OWNER, checkpoint, facts, num_logits)
        else:
            network = build_model(_OWNER, published_shape["config"], "AutoModelForMaskedLM")
        self.checkpoint = checkpoint
        self.network: nn.Module = network.train()  # its dropout follows this module's mode
        self.published_shape: HubShape = published_shape
        self.mask_token_id: int = published_shape["mask_token_id"]
        self._before = tuple(published_shape.get("before", ()))
        self._after = tuple(published_shape.get("after", ()))
        self.vocab_size: int = num_logits
        self.width, self.num_logits = _config(network).hidden_size, num_logits
        self.positions: int = _positions(network)
        self.max_length = self.positions - len(self._before) - len(self._after)
        never = torch.zeros(num_logits, dtype=torch.bool)
        never[list(published_shape.get("reserved", [self.mask_token_id]))] = True
        self._never: Tensor
        self.register_buffer("_never", never, persistent=False)

    @classmethod
    def from_hub(cls, checkpoint: str | Path) -> HubBackbone:
        """Load a checkpoint with the tokens of its tokenizer; see the constructor."""
        name = str(checkpoint)
        check_architecture(_OWNER, name, "AutoModelForMaskedLM")
        facts = token_facts(_OWNER, name, load_tokenizer(_OWNER, name))
        size = len(facts.names)
        return cls(name, num_embeddings=size + 1, num_logits=size)

    def check_tokens(self, run: RunTokens) -> None:
        """Check the tokenizer of a run, see ``TokenizedBackbone``.

        Raises:
            OSError: If a folder has no model.
            ValueError: If an id stands for different tokens, or the tokenizer encodes text to
                special tokens.
        """
        tokenizer = load_tokenizer(_OWNER, self.checkpoint)
        facts = token_facts(_OWNER, self.checkpoint, tokenizer)
        check_tokens(_OWNER, self.checkpoint, dict(enumerate(facts.names)), run)
        seen = sorted(set(facts.reserved) - set(run.reserved))
        if seen:
            raise ValueError(
                f"{_OWNER} must go with a tokenizer that never writes {facts.names[seen[0]]}, "
                f"which {self.checkpoint} puts around rows or in place of unknown text, got "
                f"{run.tokenizer}; use seqdiff.data.HubTokenizer"
            )
        if run.encode(_PROBE).tolist() != encode_strings(tokenizer, facts, [_PROBE])[0].tolist():
            raise ValueError(
                f"{_OWNER} must encode text as data.tokenizer does ({run.tokenizer}), got other "
                f"ids for {_PROBE!r} in {self.checkpoint}; give data.tokenizer.vocabulary the same "
                "folder"
            )

    def embed(self, inputs: Inputs) -> Float[Tensor, "B L D"]:
        """Embed tokens, with the mask token for masked ones; the body adds positions."""
        return self._words(self._shown(inputs.tokens))

    def body(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, layer: int | None = None
    ) -> Float[Tensor, "B L D"]:
        """Run the encoder on vectors between those of the frame.

        ``forward`` and ``hidden`` do not call it: they give the encoder ids, from which ESM also
        computes the fraction of masked tokens.

        Args:
            h: See ``Backbone.body``.
            inputs: See ``Backbone.body``.
            layer: See ``Backbone.body``; the states after 0 layers include positions.
        """
        ids, real = self._framed(torch.zeros_like(inputs.tokens), inputs.padding)
        vectors = self._words(ids)
        first, last = len(self._before), len(self._before) + h.shape[1]
        if inputs.padding is None:
            middle = h
        else:
            middle = torch.where(inputs.padding[..., None], vectors[:, first:last], h)
        vectors = torch.cat((vectors[:, :first], middle, vectors[:, last:]), dim=1)
        return self._run({"inputs_embeds": vectors}, real, first, last, layer)

    @override
    def forward(
        self, inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        return self.head(self.hidden(inputs), inputs, where)

    @override
    def hidden(self, inputs: Inputs, layer: int | None = None) -> Float[Tensor, "B L C"]:
        require_layer(type(self).__name__, layer, self.num_layers)
        self.check_condition(inputs)
        ids, real = self._framed(self._shown(inputs.tokens), inputs.padding)
        first = len(self._before)
        last = first + inputs.tokens.shape[1]
        return self._run({"input_ids": ids}, real, first, last, layer)

    def head(
        self, h: Float[Tensor, "B L D"], inputs: Inputs, where: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*positions K"]:
        """Compute the logits; those of special tokens are ``-inf``."""
        logits = _apply_head(self.network, h if where is None else h[where][None])
        logits = logits if where is None else logits[0]
        return logits[..., : self.vocab_size].masked_fill(self._never, -torch.inf)

    def _shown(self, tokens: Tensor) -> Tensor:
        return tokens.masked_fill(tokens == self.vocab_size, self.mask_token_id)

    def _framed(
        self, ids: Int[Tensor, "B L"], padding: Bool[Tensor, "B L"] | None
    ) -> tuple[Int[Tensor, "B M"], Int[Tensor, "B M"]]:
        """Put the frame around the tokens of each row, before its padding.

        Returns:
            The ids, and 1 at every position that is no padding.
        """
        rows, length = ids.shape
        size = len(self._before) + length + len(self._after)
        if size > self.positions:
            raise ValueError(
                f"HubBackbone.tokens must have at most max_length = {self.max_length} per row, "
                f"got {length}; cut the rows"
            )
        if padding is not None:
            ids = ids.masked_fill(padding, self._pad)
        framed = ids.new_full((rows, size), self._pad)
        framed[:, : len(self._before)] = ids.new_tensor(self._before)
        framed[:, len(self._before) : len(self._before) + length] = ids
        if padding is None:
            ends = ids.new_full((rows,), length)
        else:
            ends = length - padding.sum(dim=-1)
        place = len(self._before) + ends[:, None] + torch.arange(len(self._after)).to(ends)
        framed.scatter_(1, place, ids.new_tensor(self._after).expand_as(place))
        total = len(self._before) + ends + len(self._after)
        return framed, (torch.arange(size).to(ids) < total[:, None]).long()

    @property
    def _pad(self) -> int:
        pad = _config(self.network).pad_token_id
        return self.mask_token_id if pad is None else pad

    def _run(
        self,
        given: dict[str, Tensor],
        real: Int[Tensor, "B M"],
        first: int,
        last: int,
        layer: int | None,
    ) -> Float[Tensor, "B L D"]:
        """Run the encoder and cut the frame off its states."""
        some = {} if layer is None else {"output_hidden_states": True}
        states = self.encoder(**given, attention_mask=real, **some)
        found = states.last_hidden_state if layer is None else states.hidden_states[layer]
        return found[:, first:last]


class _Given(nn.Module):
    """Stands in for an encoder and returns the states that it is given as embeddings."""

    def __init__(self, encoder: nn.Module, output: type) -> None:
        super().__init__()
        self._output = output
        embeddings = getattr(encoder, "embeddings", None)
        if embeddings is not None:  # a head may be tied to them
            self.embeddings = embeddings

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Any:
        return self._output(last_hidden_state=inputs_embeds)


def _apply_head(network: nn.Module, states: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
    """Compute the logits of states that the encoder has computed before.

    Models of transformers have no common name for their head, so this runs the model's own
    ``forward``, in a shallow copy whose encoder returns the states.
    """
    outputs = require_extra("transformers.modeling_outputs", _OWNER, "hub")
    prefix = _prefix(network)
    head = copy(network)
    encoder = _Given(network.get_submodule(prefix), outputs.BaseModelOutput)
    object.__setattr__(head, "_modules", {**network._modules, prefix: encoder})
    return head(inputs_embeds=states).logits


def _prefix(network: nn.Module) -> str:
    return cast(Any, network).base_model_prefix


def _config(network: nn.Module) -> Any:
    return cast(Any, network).config


def _positions(network: nn.Module) -> int:
    """Return the longest row; learned positions may start after the id of padding."""
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - skipped
    return _config(network).max_position_embeddings


def _describe(checkpoint: str, network: nn.Module, facts: TokenFacts) -> HubShape:
    """Describe a published model, and check that it and its tokenizer can be used.

    Raises:
        ValueError: If they cannot.
    """
    if facts.mask_id is None:
        raise ValueError(
            f"{_OWNER} must have a tokenizer with a mask token, got none in {checkpoint}; choose a "
            "masked language model, or set mask_token in its tokenizer_config.json"
        )
    config = _config(network)
    check_sizes(_OWNER, checkpoint, facts, config.vocab_size)
    _check_split(checkpoint, network, facts)
    return {
        "config": json.loads(config.to_json_string()),
        "mask_token_id": facts.mask_id,
        "before": list(facts.before),
        "after": list(facts.after),
        "reserved": list(facts.reserved),
    }


@torch.no_grad()
def _check_split(checkpoint: str, network: nn.Module, facts: TokenFacts) -> None:
    """Check that a model is an encoder and a head that reads one position at a time."""
    mask = facts.mask_id or 0
    ids = torch.tensor([[*facts.before, mask, len(facts.names) - 1, mask, *facts.after]])
    was_training = network.training
    network.eval()
    try:
        wanted = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        encoder = network.get_submodule(_prefix(network))
        states = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = torch.cat([_apply_head(network, one[None, None])[0] for one in states[0]])
        fits = torch.allclose(found, wanted, rtol=_SPLIT_TOLERANCE, atol=_SPLIT_TOLERANCE)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise _unfit(checkpoint, network) from error
    finally:
        network.train(was_training)
    if not fits:
        raise _unfit(checkpoint, network)


def _unfit(checkpoint: str, network: nn.Module) -> ValueError:
    return ValueError(
        f"{_OWNER} must be an encoder whose head reads one position at a time, got a "
        f"{type(network).__name__} in {checkpoint}; choose another architecture, such as BERT, "
        "RoBERTa, ModernBERT or ESM"
    )
