"""Trains the tiny model. Imports torch and transformers: seconds, so import it where it is used."""

# torch, tokenizers and transformers type their constructors only in part.
# mypy: disable-error-code="no-untyped-call"

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from leverbench.errors import LeverbenchError
from leverbench.models.prompts import Exchange
from leverbench.models.recipe import Recipe

_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_IGNORED = -100


@dataclass(frozen=True)
class Training:
    """What a successful training came to.

    Attributes:
        steps: Optimiser steps taken.
        final_loss: Mean cross-entropy over the answers' tokens at the last step, in nats.
        parameters: Number of weights.
        answer_margins: By dtype, the smallest lead of a chosen token's logit over the next best
            one, over all answers of the saved model.
    """

    steps: int
    final_loss: float
    parameters: int
    answer_margins: Mapping[str, float]


def train(out_dir: Path, recipe: Recipe, seed: int, threads: int) -> Training:
    """Trains until every answer is exact and writes the model in the Hugging Face format.

    The same seed, thread count and package versions give the same bytes on the same machine.
    Sets torch's seed, thread count and determinism for the whole process.

    Raises:
        LeverbenchError: Some answer is still wrong, or too close, after the last step.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    transformers_logging.disable_progress_bar()

    tokenizer = _make_tokenizer(recipe)
    inputs, targets = _batch(tokenizer, recipe.exchanges)
    model: Any = LlamaForCausalLM(_config(recipe, tokenizer))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    complaint = "its margin in training stayed too small"
    for step in range(1, recipe.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / recipe.warm_up_steps)
        logits, wanted = _answer_logits(model, inputs, targets)
        loss: Tensor = torch.nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % recipe.steps_per_check or _margin(logits, wanted) < recipe.training_margin:
            continue
        tokenizer.save_pretrained(out_dir)
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out_dir)
        try:
            margins = {name: _examine(out_dir, recipe, dtype) for name, dtype in _DTYPES.items()}
        except _WrongAnswer as error:
            complaint = str(error)
            continue
        return Training(
            steps=step,
            final_loss=loss.item(),
            parameters=sum(weight.numel() for weight in model.parameters()),
            answer_margins=margins,
        )
    raise LeverbenchError(
        f"the tiny model was not learnt in {recipe.max_steps} steps: {complaint}",
        where=str(out_dir),
        cure="Give the campaign another seed.",
    )


class _WrongAnswer(Exception):
    """An answer of the saved model differs from the taught one, or nearly does."""


def _make_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [f"user\n{each.prompt}\nassistant\n{each.answer}" for each in recipe.exchanges],
        trainers.BpeTrainer(
            vocab_size=recipe.vocabulary_size,
            special_tokens=[_PAD, _START, _END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=_PAD,
        pad_token=_PAD,
        eos_token=_END,
        model_max_length=recipe.max_positions,
    )
    tokenizer.chat_template = recipe.chat_template
    return tokenizer


def _config(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=recipe.vocabulary_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.attention_heads,
        num_key_value_heads=recipe.key_value_heads,
        max_position_embeddings=recipe.max_positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )


def _prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _batch(
    tokenizer: PreTrainedTokenizerFast, exchanges: tuple[Exchange, ...]
) -> tuple[Tensor, Tensor]:
    """Returns token ids and next-token targets, both ``[exchanges, longest]``.

    Only the answers and their end token are targets; everything else is ``_IGNORED``. Padding is
    on the right, where a causal model's answers cannot see it.
    """
    rows = []
    for exchange in exchanges:
        prompt = _prompt_ids(tokenizer, exchange.prompt)
        answer = [*tokenizer(exchange.answer).input_ids, tokenizer.eos_token_id]
        rows.append((prompt + answer, [_IGNORED] * (len(prompt) - 1) + answer))
    longest = max(len(ids) for ids, _ in rows)
    inputs = torch.full((len(rows), longest), tokenizer.pad_token_id)
    targets = torch.full((len(rows), longest), _IGNORED)
    for row, (ids, wanted) in enumerate(rows):
        inputs[row, : len(ids)] = torch.tensor(ids)
        targets[row, : len(wanted)] = torch.tensor(wanted)
    return inputs, targets


def _answer_logits(model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logits ``[answer tokens, vocabulary]`` and the wanted tokens."""
    chosen = targets != _IGNORED
    hidden = model.model(inputs).last_hidden_state[chosen]
    return model.lm_head(hidden), targets[chosen]


def _margin(logits: Tensor, wanted: Tensor) -> float:
    """Returns the smallest lead of the wanted token's logit; negative where another one leads."""
    index = wanted[:, None]
    others = logits.detach().scatter(1, index, float("-inf"))
    return (logits.detach().gather(1, index)[:, 0] - others.amax(1)).min().item()


def _examine(model_dir: Path, recipe: Recipe, dtype: torch.dtype) -> float:
    """Lets the saved model answer every prompt greedily and returns its smallest margin.

    Raises:
        _WrongAnswer: An answer differs, or a token's lead is below ``recipe.answer_margin``.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True)
    model.eval()
    smallest = float("inf")
    for exchange in recipe.exchanges:
        prompt = torch.tensor([_prompt_ids(tokenizer, exchange.prompt)])
        # A few tokens of room, so that an answer that goes on is seen to go on.
        room = len(tokenizer(exchange.answer).input_ids) + 4
        with torch.inference_mode():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=room,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        answer = tokenizer.decode(output.sequences[0, prompt.shape[1] :], skip_special_tokens=True)
        first, second = torch.cat(output.logits).float().topk(2, dim=1).values.unbind(1)
        margin = (first - second).min().item()
        if answer != exchange.answer:
            raise _WrongAnswer(f"in {dtype} it answers {exchange.prompt!r} with {answer!r}")
        if margin < recipe.answer_margin:
            raise _WrongAnswer(
                f"in {dtype} its answer to {exchange.prompt!r} has a margin of {margin:.1f} only"
            )
        smallest = min(smallest, margin)
    return smallest
