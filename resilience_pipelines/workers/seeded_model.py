"""A model of a real architecture and size with weights made from a seed, for machines without one.

Start-up time depends on how large a model is and how it is computed, not on what it has learned, so
a benchmark needs the shape alone. The same shape and seed give the same files, bit for bit.

What belongs here: shapes and writing them as a model folder that vLLM and transformers load. What
does not: starting anything with it (`vllm_host`, `torch_host`).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resilience_pipelines.errors import StorageError
from resilience_pipelines.owned_folder import LOCK_NAME, owned_folder, remove_orphans

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PRECISION: Final = "bfloat16"
WEIGHTS_NAME: Final = "model.safetensors"

_END_TOKEN: Final = "<|endoftext|>"  # noqa: S105 - a token of a vocabulary
_ONE: Final = 0x3F80  # 1.0 in bfloat16
# Exponents 2^-8 to 2^-5: about the spread of trained weights, so that no layer over- or underflows.
_LOWEST_EXPONENT: Final = 127 - 8
_THREADS: Final = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Shape:
    """The numbers of a Qwen3 decoder.

    Attributes:
        tied: whether the output layer is the embedding.
        end_token: id of the token that ends a text.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    tied: bool
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    end_token: int = 151_643

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and dimensions of every weight, in the order of the file."""
        heads, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
        }
        for layer in range(self.layers):
            base = f"model.layers.{layer}"
            found |= {
                f"{base}.input_layernorm.weight": (self.hidden,),
                f"{base}.self_attn.q_proj.weight": (heads, self.hidden),
                f"{base}.self_attn.k_proj.weight": (kv, self.hidden),
                f"{base}.self_attn.v_proj.weight": (kv, self.hidden),
                f"{base}.self_attn.o_proj.weight": (self.hidden, heads),
                f"{base}.self_attn.q_norm.weight": (self.head_dim,),
                f"{base}.self_attn.k_norm.weight": (self.head_dim,),
                f"{base}.post_attention_layernorm.weight": (self.hidden,),
                f"{base}.mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"{base}.mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"{base}.mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        found["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocabulary, self.hidden)
        return found


SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("qwen3-0.6b", hidden=1024, intermediate=3072, layers=28, heads=16, tied=True),
        Shape("qwen3-8b", hidden=4096, intermediate=12_288, layers=36, heads=32, tied=False),
    )
}


def write_model(folder: Path, shape: Shape, seed: int) -> None:
    """Write a model folder; nothing to do where it is there already. It appears when it is whole.

    What a killed writer of it left is removed.

    Raises:
        StorageError: it can't be written.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".partial-{folder.name}-"
    try:
        remove_orphans(folder.parent, f"{escape(prefix)}*")
        with owned_folder(folder.with_name(f"{prefix}{secrets.token_hex(4)}")) as temporary:
            _write_json(temporary / "config.json", model_config(shape))
            _write_json(temporary / "tokenizer.json", tokenizer(shape))
            _write_json(
                temporary / "tokenizer_config.json",
                {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END_TOKEN},
            )
            _write_weights(temporary / WEIGHTS_NAME, shape.tensors(), seed)
            (temporary / LOCK_NAME).unlink()
            temporary.rename(folder)
    except OSError as error:
        raise StorageError(f"The model {folder} can't be written: {error}.") from error


def model_config(shape: Shape) -> dict[str, object]:
    """The content of `config.json`."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "eos_token_id": shape.end_token,
        "torch_dtype": PRECISION,
    }


def tokenizer(shape: Shape) -> dict[str, object]:
    """The content of `tokenizer.json`: each byte is a token, and every id has a text."""
    texts = [*_byte_texts(), *(f"token{index}" for index in range(256, shape.vocabulary))]
    vocabulary = {text: index for index, text in enumerate(texts)}
    del vocabulary[texts[shape.end_token]]
    vocabulary[_END_TOKEN] = shape.end_token
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": shape.end_token, "content": _END_TOKEN, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocabulary, "merges": [],
        },
    }  # fmt: skip


def _byte_texts() -> list[str]:
    """The character that stands for each byte in byte-level tokenizers (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False))


def _write_weights(path: Path, tensors: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """A safetensors file, written in place by several threads so that it need not fit in memory."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets = {}
    offset = 0
    for name, dimensions in tensors.items():
        size = 2
        for dimension in dimensions:
            size *= dimension
        header[name] = {
            "dtype": "BF16", "shape": list(dimensions), "data_offsets": [offset, offset + size],
        }  # fmt: skip
        offsets[name] = (offset, size // 2)
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(handle, len(text).to_bytes(8, "little") + text, 0)
        base = 8 + len(text)

        def write(item: tuple[int, str]) -> None:
            index, name = item
            start, count = offsets[name]
            values = _values(name, count, seed, index)
            view = memoryview(values.tobytes())
            written = 0
            while written < len(view):
                written += os.pwrite(handle, view[written:], base + start + written)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(write, enumerate(tensors)))
        os.fsync(handle)
    finally:
        os.close(handle)


def _values(name: str, count: int, seed: int, index: int) -> NDArray[np.uint16]:
    """A weight as the bits of bfloat16: ones for a norm, else random sign, mantissa, exponent."""
    # Imported here: callers that only look at shapes must not wait for NumPy.
    import numpy as np

    if name.endswith("norm.weight"):
        return np.full(count, _ONE, dtype=np.uint16)
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, index])))
    bits = np.frombuffer(generator.bytes(count * 2), dtype=np.uint16)
    exponent = (((bits >> np.uint16(7)) & np.uint16(3)) + np.uint16(_LOWEST_EXPONENT)) << np.uint16(
        7
    )
    return (bits & np.uint16(0x807F)) | exponent
