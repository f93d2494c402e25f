"""Makes three tiny random models without any download; run by the Python of the vLLM environment, not by ours.

    python make_models.py FOLDER

writes FOLDER/chat (Qwen3), FOLDER/embed (XLM-R encoder) and FOLDER/rerank (XLM-R with one score). The tokenizers are
trained on a few modules of Python's own library.
"""

from __future__ import annotations

import json
import pathlib
import sys
import sysconfig

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LONGEST = 2048


def words() -> list[str]:
    """Text to train the tokenizers on."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(library.glob("*.py"))[:40]]


def byte_pairs(text: list[str], size: int, specials: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer: any text survives encoding and decoding."""
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text, trainer)
    return made


def rounded(count: int) -> int:
    """Vocabulary sizes in steps of 64."""
    return -(-count // 64) * 64


def make_chat(text: list[str], folder: pathlib.Path) -> None:
    """Four layers of Qwen3."""
    pairs = byte_pairs(text, 4000, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pairs, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=LONGEST
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=rounded(len(tokenizer)),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2 * LONGEST,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)


def make_encoders(text: list[str], embed: pathlib.Path, rerank: pathlib.Path) -> None:
    """Two layers of XLM-R: one that embeds, one that scores a pair."""
    pairs = byte_pairs(text, 2000, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    pairs.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", pairs.token_to_id("<s>")), ("</s>", pairs.token_to_id("</s>"))],
    )
    marks = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    for folder, kind, more in (
        (embed, XLMRobertaModel, {}),
        (rerank, XLMRobertaForSequenceClassification, {"num_labels": 1}),
    ):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=pairs, model_max_length=LONGEST, **{f"{key}_token": mark for key, mark in marks.items()}
        )
        tokenizer.save_pretrained(folder)
        config = XLMRobertaConfig(
            vocab_size=rounded(len(tokenizer)),
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=LONGEST + 2,
            type_vocab_size=1,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            **more,
        )
        model = kind(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(folder)
        path = folder / "config.json"
        saved = json.loads(path.read_text())
        # vLLM 0.32 reads it, transformers 5 no longer writes it
        saved["position_embedding_type"] = "absolute"
        path.write_text(json.dumps(saved, indent=2))
    kinds = ("Transformer", "Pooling", "Normalize")
    parts = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (embed / "modules.json").write_text(json.dumps(parts))
    (embed / "1_Pooling").mkdir(exist_ok=True)
    (embed / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 128, "pooling_mode_cls_token": True})
    )


def main() -> None:
    """Writes all three."""
    torch.manual_seed(0)
    folder = pathlib.Path(sys.argv[1])
    text = words()
    for name in ("chat", "embed", "rerank"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    make_chat(text, folder / "chat")
    make_encoders(text, folder / "embed", folder / "rerank")


if __name__ == "__main__":
    main()
