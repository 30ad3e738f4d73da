"""Chat templates in the ways of those that are in use, and tokenizers that have them."""

from __future__ import annotations

from pathlib import Path

from dflash.data.sample import sample_target_dir

START, END = "<|im_start|>", "<|im_end|>"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""every turn as it is"""

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""says itself what the assistant writes"""

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% if loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""leaves reasoning out of the history, and shows the last turn with a place for it"""

TRIMMING = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")
"""takes space around contents away"""

PLAIN = (
    "{% for m in messages %}{{ 'U: ' if m.role == 'user' else 'A: ' }}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
"""no special token anywhere"""

COUNTING = "{{ messages | length }} messages\n" + CHATML
"""begins differently when more follows"""

STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('the first turn is a user') }}{% endif %}" + CHATML
)


def save_chat_tokenizer(folder: Path, template: str | None, eos: str = END) -> Path:
    """The sample's tokenizer with the special tokens of ChatML, 2,050 tokens in all."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sample_target_dir(), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END]})
    tokenizer.eos_token = eos
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
