"""Tasks of causal models for models of several classes: ours, and those of transformers with other layers."""

import pytest
import torch
from slow_cases import slow_except
from small_chats import character_tokenizer, completions, words
from small_encoders import write_lines
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, Qwen2Config, Qwen2ForCausalLM

from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated
from asterism.training import FineTuneConfig, evaluate, predict, train

pytestmark = pytest.mark.model

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **ENDS}
MODELS = {
    "ours": lambda size: AsterismForCausalLM(
        AsterismConfig(vocab_size=size, mixers="sinks(first=1, window=9)", position_type="rotary", **SIZES)
    ),
    "gpt2": lambda size: GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64, **ENDS)
    ),
    "gpt_neox": lambda size: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=size, intermediate_size=64, **SIZES)),
    "qwen2": lambda size: Qwen2ForCausalLM(
        Qwen2Config(vocab_size=size, intermediate_size=64, num_key_value_heads=1, tie_word_embeddings=True, **SIZES)
    ),
}


@pytest.mark.parametrize("lora", [None, "r=4"])
@pytest.mark.parametrize("name", slow_except(MODELS, "ours", "gpt_neox"))
def test_a_model_is_tuned_packed_and_asked_in_batches(name, lora, tmp_path):
    if lora is not None:
        pytest.importorskip("peft")
    tokenizer = character_tokenizer()
    with quiet_transformers(), isolated(1), torch.device("cpu"):
        MODELS[name](len(tokenizer)).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    data = write_lines(tmp_path / "x.jsonl", completions(words(60)))
    values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 4, "dtype": "float32", "steps": 10}
    where = {"model": str(tmp_path / "m"), "data": str(data), "length": 48, "epochs": 99.0}
    pattern = None if name == "ours" else "sinks(first=1, window=9)"
    asked = FineTuneConfig(task="complete", packing=True, pattern=pattern, lora=lora, **where, **values)
    report = train(asked, tmp_path / "run", progress=False)
    assert evaluate(tmp_path / "run").scores == report.scores
    rows = [{"prompt": f"{text}>"} for text in ("a", "abcd", "hg", "abc")]
    alone = list(predict(tmp_path / "run", rows, batch_size=1))
    assert list(predict(tmp_path / "run", rows, batch_size=4)) == alone
    lines = [line for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines() if "answer_loss" in line]
    assert lines and report.scores["answer_loss"] < 4
