"""Patterns to begin with: those of papers, and the windows of models that are in use.

The windows are the defaults of the configuration classes of transformers 5.23; checkpoints may differ. Models count the
token itself in their window and `window` does not, so a window of w tokens is `window(left=w - 1)`.
"""

from typing import NamedTuple


class Exhibit(NamedTuple):
    """A pattern or schedule of the gallery.

    group   the heading it stands under
    name    what people call it
    text    the pattern
    length  tokens at which it is worth looking at
    source  where it is published, and what was read off there
    link    of the paper
    layer   the layer that is shown first
    """

    group: str
    name: str
    text: str
    length: int
    source: str
    link: str
    layer: int = 0


_PAPERS, _MODELS = "Published patterns", "Windows of today's models"
_ARXIV = "https://arxiv.org/abs/"


def _five_to_one(window: int) -> str:
    return f"interleave({', '.join([f'window(left={window - 1})'] * 5)}, causal())"


GALLERY = (
    Exhibit(_PAPERS, "Sparse Transformer, strided", "strided(stride=128)", 4096, "Child 2019, section 4", "1904.10509"),
    Exhibit(
        _PAPERS,
        "Sparse Transformer, strided, a head each",
        "split_heads(window(left=128), stride(128) & causal(), heads=2)",
        4096,
        "Child 2019, section 5.1: heads with one factor each",
        "1904.10509",
    ),
    Exhibit(
        _PAPERS,
        "Sparse Transformer, fixed",
        "fixed(stride=128, summary=8)",
        4096,
        "Child 2019, section 4",
        "1904.10509",
    ),
    Exhibit(
        _PAPERS,
        "Sparse Transformer, fixed, 8 heads",
        "fixed(stride=128, summary=8, heads=8)",
        4096,
        "Child 2019, section 4.2: heads read different cells of each block",
        "1904.10509",
    ),
    Exhibit(_PAPERS, "BigBird-ITC", "bigbird()", 4096, "Zaheer 2020, section 2: blocks of 64", "2007.14062"),
    Exhibit(
        _PAPERS, "BigBird-ETC", "bigbird_etc()", 4096, "Zaheer 2020, section 2: 256 extra global tokens", "2007.14062"
    ),
    Exhibit(_PAPERS, "Longformer", "longformer()", 4096, "Beltagy 2020, section 3.1: window of 512", "2004.05150"),
    Exhibit(
        _PAPERS,
        "Longformer, dilated",
        "longformer(window=64, dilation=4)",
        4096,
        "Beltagy 2020, section 3.1",
        "2004.05150",
    ),
    Exhibit(
        _PAPERS,
        "Attention sinks",
        "sinks(first=4, window=1024)",
        8192,
        "Xiao 2023, StreamingLLM, section 3.2",
        "2309.17453",
    ),
    Exhibit(_PAPERS, "Star-Transformer", "star_transformer()", 64, "Guo 2019", "1902.09113"),
    Exhibit(_PAPERS, "Star", "star()", 64, "Zaheer 2020, appendix A, Definition 1", "2007.14062"),
    Exhibit(_PAPERS, "STRIDED of Yun", "yun_strided(16)", 256, "Yun 2020, section 2.6", "2006.04862"),
    Exhibit(_PAPERS, "FIXED of Yun", "yun_fixed(16)", 256, "Yun 2020, section 2.6", "2006.04862"),
    Exhibit(_PAPERS, "STAR of Yun", "yun_star()", 64, "Yun 2020, section 2.6", "2006.04862"),
    Exhibit(_PAPERS, "RANDOM of Yun", "yun_random(8)", 256, "Yun 2020, section 2.6, experiments only", "2006.04862"),
    Exhibit(
        _MODELS,
        "Mistral 7B v0.1",
        "window(left=4095)",
        16384,
        "sliding_window=4096 in every layer (MistralConfig)",
        "2310.06825",
    ),
    Exhibit(
        _MODELS,
        "Gemma 2",
        "interleave(window(left=4095), causal())",
        16384,
        "sliding_window=4096, every other layer causal (Gemma2Config)",
        "2408.00118",
    ),
    Exhibit(
        _MODELS,
        "Gemma 3, window 1,024",
        _five_to_one(1024),
        8192,
        "five windows to one causal layer (Gemma3TextConfig); checkpoints have windows of 512 to 1,024",
        "2503.19786",
    ),
    Exhibit(
        _MODELS,
        "ModernBERT",
        "interleave(dense(), window(left=64, right=64), window(left=64, right=64))",
        8192,
        "local_attention=128, every third layer dense (ModernBertConfig)",
        "2412.13663",
        layer=1,
    ),
    Exhibit(
        _MODELS,
        "gpt-oss",
        "interleave(window(left=127), causal())",
        4096,
        "sliding_window=128, every other layer causal (GptOssConfig); its learned sinks are no pairs and not drawn",
        "2508.10925",
    ),
    Exhibit(
        _MODELS,
        "Longformer (allenai)",
        "longformer(window=512)",
        4096,
        "attention_window=512, first token global (LongformerConfig)",
        "2004.05150",
    ),
    Exhibit(
        _MODELS,
        "BigBird (google)",
        "bigbird(block=64, random=3, heads=12)",
        4096,
        "block_size=64, num_random_blocks=3 (BigBirdConfig), drawn by this library's own seed",
        "2007.14062",
    ),
)


def gallery() -> list[dict[str, object]]:
    """The entries for the page: fields by name, with links in full."""
    return [entry._asdict() | {"link": _ARXIV + entry.link} for entry in GALLERY]
