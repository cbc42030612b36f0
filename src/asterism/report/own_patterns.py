"""What the encoders of transformers' own sparse models read, by their configurations.

LED reads windows: without `global_attention_mask`, which runs do not give, no token is global. BigBird and
BigBird-Pegasus read blocks, or everything where rows are too short for them. LongT5 reads windows. Its other variant
reads means of blocks, which no pattern of tokens names.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def encoder_patterns(shape: Mapping[str, Any], length: int) -> Sequence[str] | None:
    """The patterns of the layers, as texts, for rows of so many tokens; None for models that are not known here.

    Raises ValueError, which says why, for a model whose attention is no pattern. Raises KeyError or TypeError for a
    damaged configuration.
    """
    match shape.get("model_type"):
        case "led":
            sizes = shape["attention_window"]
            sides = [size // 2 for size in ([sizes] if isinstance(sizes, int) else sizes)]
            return [f"window(left={side}, right={side})" for side in sides]
        case "big_bird" | "bigbird_pegasus":
            block, random = shape["block_size"], shape["num_random_blocks"]
            if shape["attention_type"] != "block_sparse" or length <= (5 + 2 * random) * block:
                return ["dense()"]
            return [f"bigbird(block={block}, random={random})"]
        case "longt5":
            if shape["encoder_attention_type"] != "local":
                raise ValueError("the model is a LongT5 that reads means of blocks, which no pattern of tokens names")
            return [f"window(left={shape['local_radius']}, right={shape['local_radius']})"]
    return None
