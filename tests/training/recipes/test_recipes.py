"""Recipes: their golden texts, their published sizes, what they cost, and what a configuration refuses."""

import contextlib
import json
from dataclasses import asdict, fields, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.shape import RULES
from asterism.training.ask.estimate import estimate
from asterism.training.objectives import footprint as footprint_module
from asterism.training.pipeline import resolve
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.schedule import learning_rate_factor, notes_at_the_end, progress, warm_up, within
from asterism.training.settings.configuration import ModelConfig, RunConfig, config_from_dict

GOLDEN = {
    "bytes-small": """
        recipe=bytes-small mixers=window(left=255) | columns(period=64, first=56, count=8) & causal() hidden_size=192
        num_attention_heads=3 position_type=rotary initializer_gain=0.354 batch_size=4 steps=20000 minutes=10.0
        learning_rate=0.006 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=400
        checkpoint_every=400 evaluation_bytes=65536
    """,
    "gpt-tiny": """
        recipe=gpt-tiny mixers=interleave(window(left=127), window(left=127), window(left=127), causal())
        hidden_size=192 num_attention_heads=3 position_type=rotary initializer_gain=0.354 tie_word_embeddings=True
        batch_size=4 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50 optimizer=muon weight_decay=0.1
        log_every=20 evaluation_every=400 checkpoint_every=400 tokenizer=bpe:4096 context=512 evaluation_bytes=65536
    """,
    "gpt-small": """
        recipe=gpt-small mixers=interleave(window(left=127), window(left=127), window(left=127), causal())
        hidden_size=768 num_hidden_layers=12 num_attention_heads=12 hidden_act=gelu_new initializer_range=0.02
        tie_word_embeddings=True batch_size=512 gradient_accumulation_steps=64 gradient_checkpointing=True steps=19073
        learning_rate=0.0006 warmup_steps=715 weight_decay=0.1 log_every=50 evaluation_every=1000
        checkpoint_every=1000 tokenizer=bpe:50257 evaluation_bytes=1000000
    """,
    "cifar-tiny": """
        recipe=cifar-tiny mixers=per_head([window(left=1) & ~window(left=0), window(left=2) & ~window(left=1),
        window(left=3) & ~window(left=2), window(left=4) & ~window(left=3), window(left=5) & ~window(left=4),
        window(left=8) & ~window(left=7), window(left=92) & ~window(left=91), window(left=95) & ~window(left=94),
        window(left=96) & ~window(left=95), window(left=97) & ~window(left=96), window(left=98) & ~window(left=97),
        window(left=191) & ~window(left=190), window(left=8), window(left=104) & ~window(left=86), window(left=99),
        strided(stride=96)]) hidden_size=192 num_attention_heads=16 query_key_dim=128 value_dim=256
        position_type=factorised position_shape=(32, 32, 3) initializer_gain=0.354 tie_word_embeddings=True batch_size=1
        steps=50000 minutes=30.0 learning_rate=0.008 optimizer=muon weight_decay=0.1 log_every=50 evaluation_every=1000
        checkpoint_every=1000 modality=images(width=32, height=32) context=3072 evaluation_bytes=196608
    """,
    "sound-tiny": """
        recipe=sound-tiny mixers=per_head([window(left=1) & ~window(left=0), window(left=2) & ~window(left=1),
        window(left=3) & ~window(left=2), window(left=4) & ~window(left=3), window(left=5) & ~window(left=4),
        window(left=6) & ~window(left=5), window(left=7) & ~window(left=6), window(left=8) & ~window(left=7),
        window(left=9) & ~window(left=8), window(left=10) & ~window(left=9), window(left=11) & ~window(left=10),
        window(left=12) & ~window(left=11), window(left=15), window(left=63), window(left=255), window(left=255)
        | global_keys(0) & causal()]) hidden_size=192 num_attention_heads=16 query_key_dim=128 value_dim=256
        position_type=rotary initializer_gain=0.354 batch_size=1 steps=50000 minutes=20.0 learning_rate=0.006
        warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=500 checkpoint_every=500
        modality=audio(rate=8000) context=4096
    """,
    "sparse-transformer-enwik8": """
        recipe=sparse-transformer-enwik8 mixers=fixed(stride=128, summary=32, heads=8) hidden_size=512
        num_hidden_layers=30 num_attention_heads=8 position_type=factorised position_shape=(96, 128) dropout=0.4
        gradient_checkpointing=True steps=36621 learning_rate=0.00035 warmup_steps=5000 beta2=0.999 log_every=50
        evaluation_every=1000 checkpoint_every=1000 context=12288 evaluation_bytes=1000000
    """,
    "sparse-transformer-cifar10": """
        recipe=sparse-transformer-cifar10 mixers=strided(stride=96) num_hidden_layers=128 num_attention_heads=2
        query_key_dim=128 intermediate_size=512 position_type=factorised position_shape=(32, 32, 3) dropout=0.25
        batch_size=32 gradient_checkpointing=True steps=180000 learning_rate=0.00035 warmup_steps=5000 beta2=0.999
        log_every=50 evaluation_every=1000 checkpoint_every=1000
        modality=images(width=32, height=32) context=3072
        evaluation_bytes=1000000
    """,
    "sparse-transformer-imagenet64": """
        recipe=sparse-transformer-imagenet64 mixers=strided(stride=128) hidden_size=512 num_hidden_layers=48
        num_attention_heads=16 position_type=factorised position_shape=(64, 64, 3) dropout=0.01 batch_size=64
        gradient_accumulation_steps=4 gradient_checkpointing=True steps=1401276 learning_rate=0.00035 warmup_steps=5000
        beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        modality=images(width=64, height=64) context=12288
        evaluation_bytes=1000000
    """,
    "sparse-transformer-music": """
        recipe=sparse-transformer-music mixers=strided(stride=256) hidden_size=512 num_hidden_layers=48
        num_attention_heads=16 position_type=factorised position_shape=(256, 256) batch_size=8
        gradient_accumulation_steps=4 gradient_checkpointing=True steps=100000 learning_rate=0.00035 warmup_steps=5000
        beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000 modality=audio(rate=12000)
        context=65536 evaluation_bytes=1000000
    """,
    "all-attention-tiny": """
        recipe=all-attention-tiny mixers=window(left=256) & ~window() block=all_attention vocab_size=256 hidden_size=192
        num_attention_heads=3 attention_bias=False persistent_vectors=256 adaptive_span=True relative_span=256
        position_type=relative batch_size=4 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50 optimizer=muon
        weight_decay=0.1 log_every=20 evaluation_every=400 checkpoint_every=400 evaluation_bytes=65536
    """,
    "all-attention-enwik8-small": """
        recipe=all-attention-enwik8-small mixers=window(left=8192) & ~window() block=all_attention vocab_size=256
        hidden_size=512 num_hidden_layers=18 num_attention_heads=8 attention_bias=False persistent_vectors=1024
        adaptive_span=True relative_span=8192 max_position_embeddings=8192 position_type=relative dropout=0.3
        batch_size=4 gradient_accumulation_steps=4 gradient_checkpointing=True steps=480000 learning_rate=0.00035
        warmup_steps=32000 beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000 context=8192
        evaluation_bytes=1000000
    """,
    "all-attention-enwik8-large": """
        recipe=all-attention-enwik8-large mixers=window(left=8192) & ~window() block=all_attention vocab_size=256
        hidden_size=512 num_hidden_layers=36 num_attention_heads=8 attention_bias=False persistent_vectors=2048
        adaptive_span=True relative_span=8192 max_position_embeddings=8192 position_type=relative dropout=0.4
        batch_size=4 gradient_accumulation_steps=4 gradient_checkpointing=True steps=210000 learning_rate=0.00035
        warmup_steps=32000 beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000 context=8192
        evaluation_bytes=1000000
    """,
    "bert-tiny": """
        recipe=bert-tiny mixers=dense() hidden_size=192 num_attention_heads=3 position_type=rotary type_vocab_size=2
        embedding_norm=True hidden_act=gelu layer_norm_eps=1e-12 initializer_gain=0.354 tie_word_embeddings=True
        batch_size=4 steps=20000 minutes=10.0 learning_rate=0.006 warmup_steps=50 optimizer=muon weight_decay=0.1
        log_every=20 evaluation_every=200 checkpoint_every=200 objective=mlm tokenizer=bpe:4096
    """,
    "bert-base": """
        recipe=bert-base mixers=dense() block=post_norm vocab_size=30522 hidden_size=768 num_hidden_layers=12
        num_attention_heads=12 max_position_embeddings=512 type_vocab_size=2 embedding_norm=True hidden_act=gelu
        dropout=0.1 attention_dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True
        batch_size=256 gradient_accumulation_steps=32 gradient_checkpointing=True steps=1000000 learning_rate=0.0001
        warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=mlm next_sentence=True tokenizer=bpe:30522 context=512 evaluation_bytes=1000000
    """,
    "bigbird-tiny": """
        recipe=bigbird-tiny mixers=('bigbird(block=32, random=1, seed=0, heads=3)', 'bigbird(block=32, random=1, seed=1,
        heads=3)', 'bigbird(block=32, random=1, seed=2, heads=3)', 'bigbird(block=32, random=1, seed=3, heads=3)')
        hidden_size=192 num_attention_heads=3 position_type=rotary type_vocab_size=2 embedding_norm=True
        hidden_act=gelu_new layer_norm_eps=1e-12 initializer_gain=0.354 tie_word_embeddings=True batch_size=4
        steps=20000 minutes=10.0 learning_rate=0.006 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20
        evaluation_every=200 checkpoint_every=200 objective=mlm tokenizer=bpe:4096
    """,
    "bigbird-etc-tiny": """
        recipe=bigbird-etc-tiny mixers=bigbird_etc(block=32, globals=32) hidden_size=192 num_attention_heads=3
        position_type=rotary type_vocab_size=2 embedding_norm=True global_tokens=32 hidden_act=gelu_new
        layer_norm_eps=1e-12 initializer_gain=0.354 tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0
        learning_rate=0.006 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200
        checkpoint_every=200 objective=mlm tokenizer=bpe:4096
    """,
    "bigbird-itc-base": """
        recipe=bigbird-itc-base mixers=('bigbird(block=64, random=3, seed=0, heads=12)', 'bigbird(block=64, random=3,
        seed=1, heads=12)', 'bigbird(block=64, random=3, seed=2, heads=12)', 'bigbird(block=64, random=3, seed=3,
        heads=12)', 'bigbird(block=64, random=3, seed=4, heads=12)', 'bigbird(block=64, random=3, seed=5, heads=12)',
        'bigbird(block=64, random=3, seed=6, heads=12)', 'bigbird(block=64, random=3, seed=7, heads=12)',
        'bigbird(block=64, random=3, seed=8, heads=12)', 'bigbird(block=64, random=3, seed=9, heads=12)',
        'bigbird(block=64, random=3, seed=10, heads=12)', 'bigbird(block=64, random=3, seed=11, heads=12)')
        block=post_norm vocab_size=50358 hidden_size=768 num_hidden_layers=12 num_attention_heads=12
        max_position_embeddings=4096 type_vocab_size=2 embedding_norm=True hidden_act=gelu_new dropout=0.1
        attention_dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True batch_size=256
        gradient_accumulation_steps=128 gradient_checkpointing=True steps=500000 learning_rate=0.0001 warmup_steps=10000
        schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=mlm
        tokenizer=bpe:50358 context=4096 evaluation_bytes=1000000
    """,
    "bigbird-genomics-base": """
        recipe=bigbird-genomics-base mixers=('bigbird(block=64, random=3, seed=0, heads=12)', 'bigbird(block=64,
        random=3, seed=1, heads=12)', 'bigbird(block=64, random=3, seed=2, heads=12)', 'bigbird(block=64,
        random=3, seed=3, heads=12)', 'bigbird(block=64, random=3, seed=4, heads=12)', 'bigbird(block=64,
        random=3, seed=5, heads=12)', 'bigbird(block=64, random=3, seed=6, heads=12)', 'bigbird(block=64,
        random=3, seed=7, heads=12)', 'bigbird(block=64, random=3, seed=8, heads=12)', 'bigbird(block=64,
        random=3, seed=9, heads=12)', 'bigbird(block=64, random=3, seed=10, heads=12)', 'bigbird(block=64,
        random=3, seed=11, heads=12)') block=post_norm vocab_size=32000 hidden_size=768 num_hidden_layers=12
        num_attention_heads=12 max_position_embeddings=4096 type_vocab_size=2 embedding_norm=True
        hidden_act=gelu_new dropout=0.1 attention_dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02
        tie_word_embeddings=True batch_size=256 gradient_accumulation_steps=128 gradient_checkpointing=True
        steps=1000000 learning_rate=0.0001 warmup_steps=10000 schedule=linear beta2=0.999 log_every=50
        evaluation_every=1000 checkpoint_every=1000 objective=mlm next_sentence=True
        modality=genome(reverse_complement=False) tokenizer=dna-bpe:32000 context=4096 evaluation_bytes=1000000
    """,
    "dna-tiny": """
        recipe=dna-tiny mixers=per_head([window(left=1) & ~window(left=0), window(left=2) & ~window(left=1),
        window(left=3) & ~window(left=2), window(left=4) & ~window(left=3), window(left=5) & ~window(left=4),
        window(left=6) & ~window(left=5), window(left=7) & ~window(left=6), window(left=8) & ~window(left=7),
        window(left=9) & ~window(left=8), window(left=10) & ~window(left=9), window(left=11) & ~window(left=10),
        window(left=12) & ~window(left=11), window(left=15), window(left=63), stride(period=3) & window(left=383),
        strided(stride=64)]) hidden_size=128 num_hidden_layers=3 num_attention_heads=16
        position_type=rotary initializer_gain=0.354 batch_size=1 steps=20000 minutes=10.0 learning_rate=0.006
        warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=400 checkpoint_every=400
        modality=genome() context=4096 evaluation_bytes=65536
    """,
    "bigbird-etc-base": """
        recipe=bigbird-etc-base mixers=bigbird_etc(block=84, globals=256) block=post_norm vocab_size=50358
        hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=4096 type_vocab_size=2
        embedding_norm=True global_tokens=256 hidden_act=gelu_new dropout=0.1 attention_dropout=0.1 layer_norm_eps=1e-12
        initializer_range=0.02 tie_word_embeddings=True batch_size=256 gradient_accumulation_steps=128
        gradient_checkpointing=True steps=500000 learning_rate=0.0001 warmup_steps=10000 schedule=linear beta2=0.999
        log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=mlm tokenizer=bpe:50358 context=4096
        evaluation_bytes=1000000
    """,
    "bigbird-itc-large": """
        recipe=bigbird-itc-large mixers=('bigbird(block=64, random=3, seed=0, heads=16)', 'bigbird(block=64, random=3,
        seed=1, heads=16)', 'bigbird(block=64, random=3, seed=2, heads=16)', 'bigbird(block=64, random=3, seed=3,
        heads=16)', 'bigbird(block=64, random=3, seed=4, heads=16)', 'bigbird(block=64, random=3, seed=5, heads=16)',
        'bigbird(block=64, random=3, seed=6, heads=16)', 'bigbird(block=64, random=3, seed=7, heads=16)',
        'bigbird(block=64, random=3, seed=8, heads=16)', 'bigbird(block=64, random=3, seed=9, heads=16)',
        'bigbird(block=64, random=3, seed=10, heads=16)', 'bigbird(block=64, random=3, seed=11, heads=16)',
        'bigbird(block=64, random=3, seed=12, heads=16)', 'bigbird(block=64, random=3, seed=13, heads=16)',
        'bigbird(block=64, random=3, seed=14, heads=16)', 'bigbird(block=64, random=3, seed=15, heads=16)',
        'bigbird(block=64, random=3, seed=16, heads=16)', 'bigbird(block=64, random=3, seed=17, heads=16)',
        'bigbird(block=64, random=3, seed=18, heads=16)', 'bigbird(block=64, random=3, seed=19, heads=16)',
        'bigbird(block=64, random=3, seed=20, heads=16)', 'bigbird(block=64, random=3, seed=21, heads=16)',
        'bigbird(block=64, random=3, seed=22, heads=16)', 'bigbird(block=64, random=3, seed=23, heads=16)')
        block=post_norm vocab_size=50358 hidden_size=1024 num_hidden_layers=24 num_attention_heads=16
        max_position_embeddings=4096 type_vocab_size=2 embedding_norm=True hidden_act=gelu_new dropout=0.1
        attention_dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True batch_size=2048
        gradient_accumulation_steps=2048 gradient_checkpointing=True steps=500000 learning_rate=0.0001
        warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=mlm tokenizer=bpe:50358 context=4096 evaluation_bytes=1000000
    """,
    "span-corruption-tiny": """
        recipe=span-corruption-tiny mixers=window(left=64, right=64) decoder_mixers=causal() hidden_size=192
        num_hidden_layers=3 num_attention_heads=3 position_type=rotary hidden_act=gelu initializer_gain=0.354
        tie_word_embeddings=True batch_size=12 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50
        optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200 objective=span_corruption
        tokenizer=bpe:4096 context=512
    """,
    "gap-sentences-tiny": """
        recipe=gap-sentences-tiny mixers=window(left=64, right=64) decoder_mixers=causal() hidden_size=192
        num_hidden_layers=3 num_attention_heads=3 position_type=rotary hidden_act=gelu initializer_gain=0.354
        tie_word_embeddings=True batch_size=8 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50
        optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200 objective=gap_sentences
        tokenizer=bpe:4096 context=512
    """,
    "transformer-tiny": """
        recipe=transformer-tiny mixers=dense() decoder_mixers=causal() hidden_size=192 num_attention_heads=3
        attention_bias=False position_type=rotary hidden_act=relu initializer_gain=0.354 tie_word_embeddings=True
        batch_size=4 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50 optimizer=muon weight_decay=0.1
        log_every=20 evaluation_every=200 checkpoint_every=200 objective=span_corruption tokenizer=bpe:4096
    """,
    "transformer-base": """
        recipe=transformer-base mixers=dense() decoder_mixers=causal() block=post_norm vocab_size=41100 hidden_size=512
        num_hidden_layers=6 num_attention_heads=8 attention_bias=False max_position_embeddings=1024
        position_type=sinusoidal embedding_scale=22.627416997969522 hidden_act=relu dropout=0.1
        initializer_range=0.04419417382415922 tie_word_embeddings=True batch_size=128 gradient_accumulation_steps=4
        gradient_checkpointing=True steps=100000 learning_rate=0.0007 warmup_steps=4000 schedule=inverse_sqrt beta2=0.98
        weight_decay=0.0 log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=span_corruption
        tokenizer=bpe:41071 context=512 evaluation_bytes=1000000
    """,
    "bigbird-roberta-summarization-tiny": """
        recipe=bigbird-roberta-summarization-tiny mixers=('bigbird(block=32, random=1, seed=0, heads=3)',
        'bigbird(block=32, random=1, seed=1, heads=3)', 'bigbird(block=32, random=1, seed=2, heads=3)',
        'bigbird(block=32, random=1, seed=3, heads=3)') decoder_mixers=causal() hidden_size=192 num_attention_heads=3
        position_type=rotary type_vocab_size=2 embedding_norm=True hidden_act=gelu_new layer_norm_eps=1e-12
        initializer_gain=0.354 tie_word_embeddings=True tie_encoder_decoder=True batch_size=4 steps=20000 minutes=10.0
        learning_rate=0.003 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200
        checkpoint_every=200 objective=span_corruption tokenizer=bpe:4096
    """,
    "bigbird-roberta-base-summarization": """
        recipe=bigbird-roberta-base-summarization mixers=('bigbird(block=64, random=3, seed=0, heads=12)',
        'bigbird(block=64, random=3, seed=1, heads=12)', 'bigbird(block=64, random=3, seed=2, heads=12)',
        'bigbird(block=64, random=3, seed=3, heads=12)', 'bigbird(block=64, random=3, seed=4, heads=12)',
        'bigbird(block=64, random=3, seed=5, heads=12)', 'bigbird(block=64, random=3, seed=6, heads=12)',
        'bigbird(block=64, random=3, seed=7, heads=12)', 'bigbird(block=64, random=3, seed=8, heads=12)',
        'bigbird(block=64, random=3, seed=9, heads=12)', 'bigbird(block=64, random=3, seed=10, heads=12)',
        'bigbird(block=64, random=3, seed=11, heads=12)') decoder_mixers=causal() block=post_norm vocab_size=50358
        hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=4096 type_vocab_size=2
        embedding_norm=True hidden_act=gelu_new dropout=0.1 attention_dropout=0.1 layer_norm_eps=1e-12
        initializer_range=0.02 tie_word_embeddings=True tie_encoder_decoder=True batch_size=256
        gradient_accumulation_steps=256 gradient_checkpointing=True steps=500000 learning_rate=0.0001 warmup_steps=10000
        schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=span_corruption
        tokenizer=bpe:50130 context=4096 evaluation_bytes=1000000
    """,
    "bigbird-pegasus-tiny": """
        recipe=bigbird-pegasus-tiny mixers=('bigbird(block=32, random=1, seed=0, heads=3)', 'bigbird(block=32, random=1,
        seed=1, heads=3)', 'bigbird(block=32, random=1, seed=2, heads=3)', 'bigbird(block=32, random=1, seed=3,
        heads=3)') decoder_mixers=causal() hidden_size=192 num_attention_heads=3 attention_bias=False
        position_type=rotary hidden_act=relu initializer_gain=0.354 tie_word_embeddings=True batch_size=4 steps=20000
        minutes=10.0 learning_rate=0.003 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20
        evaluation_every=200 checkpoint_every=200 objective=gap_sentences tokenizer=bpe:4096 target_length=256
    """,
    "bigbird-pegasus-large": """
        recipe=bigbird-pegasus-large mixers=('bigbird(block=64, random=3, seed=0, heads=16)', 'bigbird(block=64,
        random=3, seed=1, heads=16)', 'bigbird(block=64, random=3, seed=2, heads=16)', 'bigbird(block=64, random=3,
        seed=3, heads=16)', 'bigbird(block=64, random=3, seed=4, heads=16)', 'bigbird(block=64, random=3, seed=5,
        heads=16)', 'bigbird(block=64, random=3, seed=6, heads=16)', 'bigbird(block=64, random=3, seed=7, heads=16)',
        'bigbird(block=64, random=3, seed=8, heads=16)', 'bigbird(block=64, random=3, seed=9, heads=16)',
        'bigbird(block=64, random=3, seed=10, heads=16)', 'bigbird(block=64, random=3, seed=11, heads=16)',
        'bigbird(block=64, random=3, seed=12, heads=16)', 'bigbird(block=64, random=3, seed=13, heads=16)',
        'bigbird(block=64, random=3, seed=14, heads=16)', 'bigbird(block=64, random=3, seed=15, heads=16)')
        decoder_mixers=causal() vocab_size=96103 hidden_size=1024 num_hidden_layers=16 num_attention_heads=16
        attention_bias=False max_position_embeddings=4096 embedding_scale=32.0 hidden_act=relu dropout=0.1
        initializer_range=0.02 tie_word_embeddings=True batch_size=256 gradient_accumulation_steps=256
        gradient_checkpointing=True steps=500000 learning_rate=0.0001 warmup_steps=10000 schedule=inverse_sqrt
        optimizer=adafactor beta2=0.999 weight_decay=0.0 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=gap_sentences tokenizer=unigram:96103 context=3072 target_length=256 evaluation_bytes=1000000
    """,
    "led-tiny": """
        recipe=led-tiny mixers=longformer(window=64, globals=(0,)) decoder_mixers=causal() hidden_size=192
        num_attention_heads=3 position_type=rotary embedding_norm=True global_projections=(0,) hidden_act=gelu
        initializer_gain=0.354 tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0 learning_rate=0.003
        warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200
        objective=span_corruption tokenizer=bpe:4096
    """,
    "led-base": """
        recipe=led-base mixers=longformer(window=1024, globals=(0,)) decoder_mixers=causal() block=post_norm
        vocab_size=50265 hidden_size=768 num_hidden_layers=6 num_attention_heads=12 max_position_embeddings=16384
        decoder_max_position_embeddings=1024 embedding_norm=True global_projections=(0,) hidden_act=gelu dropout=0.1
        initializer_range=0.02 tie_word_embeddings=True batch_size=64 gradient_accumulation_steps=64
        gradient_checkpointing=True steps=65000 learning_rate=0.0001 warmup_steps=10000 schedule=linear beta2=0.999
        log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=span_corruption tokenizer=bpe:50037
        context=4096 evaluation_bytes=1000000
    """,
    "longformer-tiny": """
        recipe=longformer-tiny mixers=longformer(window=64, globals=(0,)) hidden_size=192 num_attention_heads=3
        position_type=rotary embedding_norm=True global_projections=(0,) hidden_act=gelu initializer_gain=0.354
        tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0 learning_rate=0.006 warmup_steps=50
        optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200 objective=mlm
        tokenizer=bpe:4096
    """,
    "longformer-base": """
        recipe=longformer-base mixers=longformer(window=512, globals=(0,)) block=post_norm vocab_size=50265
        hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=4096 embedding_norm=True
        global_projections=(0,) hidden_act=gelu dropout=0.1 attention_dropout=0.1 initializer_range=0.02
        tie_word_embeddings=True batch_size=64 gradient_accumulation_steps=32 gradient_checkpointing=True steps=65000
        learning_rate=0.0001 warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000
        checkpoint_every=1000 objective=mlm tokenizer=bpe:50265 context=4096 evaluation_bytes=1000000
    """,
    "star-tiny": """
        recipe=star-tiny mixers=star_transformer() hidden_size=192 num_attention_heads=3 position_type=rotary
        type_vocab_size=2 embedding_norm=True hidden_act=gelu layer_norm_eps=1e-12 initializer_gain=0.354
        tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0 learning_rate=0.006 warmup_steps=50
        optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200 objective=mlm
        tokenizer=bpe:4096
    """,
    "star-base": """
        recipe=star-base mixers=star_transformer() block=post_norm vocab_size=30522 hidden_size=768 num_hidden_layers=12
        num_attention_heads=12 max_position_embeddings=4096 type_vocab_size=2 embedding_norm=True hidden_act=gelu
        dropout=0.1 attention_dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True
        batch_size=256 gradient_accumulation_steps=128 gradient_checkpointing=True steps=500000 learning_rate=0.0001
        warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=mlm tokenizer=bpe:30522 context=4096 evaluation_bytes=1000000
    """,
    "fnet-tiny": """
        recipe=fnet-tiny mixers=fourier() block=post_norm hidden_size=192 num_attention_heads=3 type_vocab_size=4
        embedding_size=192 embedding_norm=True hidden_act=gelu_new layer_norm_eps=1e-12 initializer_range=0.02
        tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0 learning_rate=0.003 warmup_steps=50
        optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200 checkpoint_every=200 objective=mlm
        tokenizer=bpe:4096
    """,
    "fnet-base": """
        recipe=fnet-base mixers=fourier() block=post_norm vocab_size=32000 hidden_size=768 num_hidden_layers=12
        num_attention_heads=12 max_position_embeddings=512 type_vocab_size=4 embedding_size=768 embedding_norm=True
        hidden_act=gelu_new dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True
        batch_size=256 gradient_accumulation_steps=32 gradient_checkpointing=True steps=1000000 learning_rate=0.0001
        warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=mlm next_sentence=True tokenizer=unigram:32000 context=512 evaluation_bytes=1000000
    """,
    "fnet-large": """
        recipe=fnet-large mixers=fourier() block=post_norm vocab_size=32000 hidden_size=1024 num_hidden_layers=24
        num_attention_heads=16 max_position_embeddings=512 type_vocab_size=4 embedding_size=1024 embedding_norm=True
        hidden_act=gelu_new dropout=0.1 layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True
        batch_size=256 gradient_accumulation_steps=64 gradient_checkpointing=True steps=1000000 learning_rate=0.0001
        warmup_steps=10000 schedule=linear beta2=0.999 log_every=50 evaluation_every=1000 checkpoint_every=1000
        objective=mlm next_sentence=True tokenizer=unigram:32000 context=512 evaluation_bytes=1000000
    """,
    "fnet-hybrid-tiny": """
        recipe=fnet-hybrid-tiny mixers=('fourier()', 'fourier()', 'dense()', 'dense()') block=post_norm hidden_size=192
        num_attention_heads=3 type_vocab_size=4 embedding_size=192 embedding_norm=True hidden_act=gelu_new
        layer_norm_eps=1e-12 initializer_range=0.02 tie_word_embeddings=True batch_size=4 steps=20000 minutes=10.0
        learning_rate=0.003 warmup_steps=50 optimizer=muon weight_decay=0.1 log_every=20 evaluation_every=200
        checkpoint_every=200 objective=mlm tokenizer=bpe:4096
    """,
    "fnet-hybrid-base": """
        recipe=fnet-hybrid-base mixers=('fourier()', 'fourier()', 'fourier()', 'fourier()', 'fourier()', 'fourier()',
        'fourier()', 'fourier()', 'fourier()', 'fourier()', 'dense()', 'dense()') block=post_norm vocab_size=32000
        hidden_size=768 num_hidden_layers=12 num_attention_heads=12 max_position_embeddings=512 type_vocab_size=4
        embedding_size=768 embedding_norm=True hidden_act=gelu_new dropout=0.1 layer_norm_eps=1e-12
        initializer_range=0.02 tie_word_embeddings=True batch_size=256 gradient_accumulation_steps=32
        gradient_checkpointing=True steps=1000000 learning_rate=0.0001 warmup_steps=10000 schedule=linear beta2=0.999
        log_every=50 evaluation_every=1000 checkpoint_every=1000 objective=mlm next_sentence=True
        tokenizer=unigram:32000 context=512 evaluation_bytes=1000000
    """,
}
"""For each recipe, every field that differs from the defaults: its name, the model's fields, the run's, in order."""

PUBLISHED_PARAMETERS = {
    "sparse-transformer-enwik8": 95e6,
    "sparse-transformer-cifar10": 59e6,
    "sparse-transformer-imagenet64": 152e6,
    "sparse-transformer-music": 152e6,
}

TINY = RunConfig(
    model=ModelConfig(mixers="window(left=15)", hidden_size=32, num_hidden_layers=3, num_attention_heads=2),
    context=64,
    batch_size=4,
    dtype="float32",
)


def _text(config):
    """The fields that differ from their defaults, those of the model in the model's place."""
    words = []
    for owner, default in ((config, RunConfig()), (config.model, ModelConfig())):
        changed = [field.name for field in fields(owner) if getattr(owner, field.name) != getattr(default, field.name)]
        words.append([f"{name}={getattr(owner, name)}" for name in changed if name != "model"])
    run, model = words
    (name,) = (word for word in run if word.startswith("recipe="))
    run.remove(name)
    return " ".join([name, *model, *run])


@pytest.mark.parametrize("name", RECIPES)
def test_golden_text(name):
    assert _text(recipe(name)) == " ".join(GOLDEN[name].split())


def test_flags_of_the_model_have_the_help_of_the_table(capsys):
    assert main(["train", "--help-all"]) == 0
    shown = "".join(capsys.readouterr().out.split())  # lines break at spaces and hyphens
    for name, rule in RULES.items():
        flag = f"model.{name.replace('_', '-')}"
        assert "".join(rule.metadata["help"].split()) in shown.partition(flag)[2]


@pytest.mark.parametrize("name", RECIPES)
def test_a_configuration_survives_json(name):
    config = recipe(name)
    assert config.recipe == name
    assert config_from_dict("train", json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.model
@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_published_sizes_within_three_percent(name):
    costs = estimate(recipe(name))
    assert abs(costs.parameters / PUBLISHED_PARAMETERS[name] - 1) < 0.03
    # Every weight takes part in four products of two operations: forward, recomputed, and two backward.
    assert costs.flops_per_step / costs.tokens_per_step > 7.5 * costs.parameters
    assert 4 * 4 * costs.parameters < costs.memory < 40 * 2**30


@pytest.mark.model
def test_estimate_agrees_with_the_model_itself():
    model = resolve(TINY).build(torch.device("cpu"))[0]
    costs = estimate(TINY)
    assert costs.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert costs.tokens_per_step == 256 and costs.optimizer_memory == 8 * costs.parameters
    matrices = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2)
    assert estimate(replace(TINY, optimizer="muon")).optimizer_memory == costs.optimizer_memory - 4 * matrices
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(4, 64, dtype=torch.int64)).logits.sum().backward()
    linear = sum(
        count
        for name, count in counter.get_flop_counts()["Global"].items()
        if "mm" in str(name) and "bmm" not in str(name)
    )
    assert costs.flops_per_step - costs.mixing_flops_per_step == linear
    # 64 queries with 16 keys each, less the corner; 4 operations forward and 10 backward.
    pairs = 64 * 16 - 15 * 16 // 2
    assert costs.mixing_flops_per_step == 14 * pairs * 32 * 3 * 4


@pytest.mark.model
@pytest.mark.parametrize("index_dim", [0, 8])
def test_estimate_counts_layers_that_choose(index_dim):
    """Its products with weights are those of the model itself, index branches included."""
    chosen = "window(left=4) | selected(block=16, topk=2, first=0) & causal()"
    shape = replace(TINY.model, mixers=f"interleave(causal(), {chosen})", index_dim=index_dim)
    config = replace(TINY, model=shape)
    costs, model = estimate(config), resolve(config).build(torch.device("cpu"))[0]
    assert costs.parameters == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(
            input_ids=torch.zeros(4, 64, dtype=torch.int64), labels=torch.zeros(4, 64, dtype=torch.int64)
        ).loss.backward()
    linear = sum(
        count
        for name, count in counter.get_flop_counts()["Global"].items()
        if "mm" in str(name) and "bmm" not in str(name)
    )
    # The input of an index branch is cut off, so two of the three products of its projections are counted here.
    branch = 2 * 256 * shape.hidden_size * 2 * (shape.num_key_value_heads or shape.num_attention_heads) * index_dim
    layers = sum(mixer.count("selected") for mixer in map(str, model.config.layer_mixers())) if index_dim else 0
    assert costs.flops_per_step - costs.mixing_flops_per_step - linear == layers * branch


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fake_tensors_keep_what_real_ones_keep(monkeypatch, dtype):
    config = replace(TINY, dtype=dtype)
    faked = estimate(config).activation_memory
    monkeypatch.setattr(footprint_module, "FakeTensorMode", contextlib.nullcontext)
    assert estimate(config).activation_memory == faked


@pytest.mark.model
def test_recomputation_and_accumulation_save_activations():
    plain, recomputed = estimate(TINY), estimate(replace(TINY, gradient_checkpointing=True))
    assert recomputed.activation_memory < plain.activation_memory
    assert recomputed.flops_per_step > plain.flops_per_step
    assert estimate(replace(TINY, gradient_accumulation_steps=4)).activation_memory < plain.activation_memory / 3
    assert estimate(replace(TINY, gradient_accumulation_steps=4)).flops_per_step == plain.flops_per_step


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigurationError, match="unknown recipe 'bytes-smal'. Did you mean 'bytes-small'?"):
        recipe("bytes-smal")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"contxt": 3}, "run configuration: there is no field 'contxt'. Did you mean 'context'?"),
        (
            {"model": {"hiden_size": 3}},
            "model configuration: there is no field 'hiden_size'. Did you mean 'hidden_size'?",
        ),
        ({"context": 0}, "context=0 must be at least 1"),
        ({"steps": -5}, "steps=-5 must be at least 1"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be finite"),
        ({"beta2": 1.0}, r"beta2=1.0 must be in \[0, 1\)"),
        ({"minutes": 0.0}, "minutes=0.0 must be positive, or None for no limit"),
        ({"dtype": "float16"}, "dtype='float16' must be one of: auto, float32, bfloat16"),
        ({"batch_size": 4, "gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3 must divide batch_size=4"),
        ({"record_length": 3072}, "record_length=3072 must equal context=1024: a record is one sequence"),
    ],
)
def test_refusals(values, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        config_from_dict("train", values)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_learning_rate_warms_up_and_falls_to_zero():
    config = replace(TINY, steps=100, warmup_steps=10)
    factors = [learning_rate_factor(config, step, 0.0) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and max(factors) > 0.97
    assert factors[:9] == sorted(factors[:9]) and factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[50] == pytest.approx(0.5) and factors[100] == pytest.approx(0.0, abs=1e-12)


def test_the_inverse_root_by_hand():
    """Vaswani 2017, section 5.3: min(step^-0.5, step * warmup^-1.5), of which the peak, warmup^-0.5, is 1 here."""
    config = replace(TINY, steps=100, warmup_steps=4, schedule="inverse_sqrt", minutes=1.0)
    factors = [learning_rate_factor(config, step, 0.0) for step in range(16)]
    assert factors[:4] == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1])
    assert factors[8] == pytest.approx(2 / 3) and factors[15] == pytest.approx(1 / 2)
    assert learning_rate_factor(replace(config, warmup_steps=0), 3, 0.0) == pytest.approx(1 / 2)


@pytest.mark.parametrize("name", [name for name in RECIPES if recipe(name).minutes is not None])
@pytest.mark.parametrize("schedule", ("cosine", "linear", "inverse_sqrt"))
def test_the_learning_rate_that_was_asked_for_is_reached_on_a_slow_machine(name, schedule):
    """In a run of 20 steps, where a machine with two cores of today makes two thousand."""
    config = replace(recipe(name), schedule=schedule)
    seconds = config.minutes * 60 / 20
    factors = [learning_rate_factor(config, step, step * seconds) for step in range(20)]
    assert max(factors) > 0.85 and factors[0] < 0.1
    assert notes_at_the_end(config, 20, config.minutes * 60) == []


def test_warm_up_in_steps_is_as_long_as_asked_for():
    config = replace(TINY, steps=100, warmup_steps=40)
    assert [warm_up(config, step, 1e9) for step in (0, 9, 39, 40)] == [1 / 40, 10 / 40, 1, 1]
    (note,) = notes_at_the_end(replace(config, warmup_steps=400, learning_rate=3e-3), 100, 1e9)
    assert note.startswith(
        "the run ended during warm-up, after 100 of 400 steps: the learning rate reached 25% of 0.003"
    )
    assert "--warmup-steps" in note


def test_warm_up_of_a_run_that_epochs_end():
    config = replace(TINY, steps=1_000, warmup_steps=40)
    assert within(config, 1_000) == within(config, 2_000) == config
    assert [within(config, steps).warmup_steps for steps in (999, 400, 100, 5)] == [40, 40, 10, 1]
    assert within(config, 100).steps == 100


def test_time_and_steps_share_one_schedule():
    config = replace(TINY, steps=100, minutes=2.0)
    assert progress(config, 30, 0.0) == pytest.approx(0.3)
    assert progress(config, 30, 60.0) == pytest.approx(0.5)
    assert progress(config, 3, 120.0) == progress(config, 3, 121.0) == 1.0  # the last step may end after the time
    assert progress(replace(config, minutes=None), 3, 1e9) == pytest.approx(0.03)
