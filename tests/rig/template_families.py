"""Chat templates that render conversations as those of well-known families of models do, reduced to what they render.

They are written from the published formats, to find the assistant's tokens in each. What a family does besides, such as
defaults of the system prompt or the layout of tools, is reduced to a line.
"""

from __future__ import annotations

import attrs

CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first else '' }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"


@attrs.frozen
class Family:
    """A chat template, and what it writes around the content of an assistant's turn, after the prompt for that turn.

    Attributes:
        template: the chat template.
        special: its special tokens.
        end: what ends a turn, if it is the last one.
        lead: what the turn has before its content, if it is the last one.
        is_joint: whether it renders earlier turns as if they were the last ones.
        opens_thought: whether its prompts end with <think>, and it drops the thinking of an answer.
        has_system: whether it renders system prompts.
        options: variables of the template.
    """

    template: str
    special: tuple[str, ...]
    end: str
    lead: str = ""
    is_joint: bool = True
    opens_thought: bool = False
    has_system: bool = True
    options: dict[str, object] = attrs.field(factory=dict)

    def expected(self, contents: list[str]) -> list[str]:
        """Return the chosen text of each turn with these contents, as the last one."""
        return [self.lead + content + self.end for content in contents]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A default system prompt; responses of tools are the user's, in <tool_response>.
QWEN_25 = (
    TOOLS
    + "{% if messages[0].role != 'system' and not tools %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    + CALLS
    + "<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Thinking is rendered only after the last question, and there even if it is empty.
QWEN_3 = (
    TOOLS
    + "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m.content }}\n</tool_response><|im_end|>\n{% elif m.role == 'assistant' %}{% set said = m.content or '' %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought.strip('\\n') }}\n</think>\n\n"
    "{{ said.lstrip('\\n') }}{% else %}{{ said }}{% endif %}" + CALLS + "<|im_end|>\n{% else %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
# As Qwen 3, but every turn after the last question has a block of thinking, which its prompt opens.
QWEN_35 = (
    QWEN_3.replace("(loop.last or thought)", "true")
    .replace("<|im_start|>assistant\n{% if enable_thinking", "<|im_start|>assistant\n<think>\n{% if enable_thinking")
    .replace("is false %}<think>\n\n</think>", "is false %}{{ '\\n' }}</think>")
)
# The prompt ends with an open <think>; turns without thinking, and all before the last question, have an empty one.
NEMOTRON_3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n"
    "{% else %}<think></think>{% endif %}{% endif %}{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
# Roles of their own, and one token that ends the assistant's turns alone.
NEMOTRON_2 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<SPECIAL_11>Assistant\n"
    "{{ m.content.split('</think>')[-1].strip() }}\n<SPECIAL_12>\n{% else %}"
    "<SPECIAL_{{ '10' if m.role == 'system' else '11' }}>{{ m.role | capitalize }}\n"
    "{{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<SPECIAL_11>Assistant\n<think>\n{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}"
    "<|end_header_id|>\n\n{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set before = messages[0].content + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set before = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ before if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# The whole conversation ends with EOS, unless a turn is to follow.
PHI_3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
PHI_4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
# The system prompt and the tools stand before the last question; prompts have no header.
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set before = messages[0].content + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set before = '' %}{% set turns = messages %}{% endif %}"
    "{% set ns = namespace(last=-1) %}{% for m in turns %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in turns %}{% if m.role == 'user' %}{% if loop.index0 == ns.last and tools %}"
    "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] "
    "{{ before if loop.index0 == ns.last else '' }}{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS] "
    "{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls %}"
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]{{ eos_token }}"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Channels; thinking is rendered in the last turn alone, which ends with another token, unless a turn is to follow.
GPT_OSS = (
    "<|start|>system<|message|>Reasoning: medium<|end|>{% set ns = namespace(tool='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}<|start|>developer<|message|>{{ m.content }}<|end|>{% elif m.role == 'tool' %}"
    "<|start|>functions.{{ ns.tool }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% elif m.tool_calls %}"
    "{% set ns.tool = m.tool_calls[0].function.name %}<|start|>assistant to=functions.{{ ns.tool }}<|channel|>"
    "commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif loop.last and not add_generation_prompt %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% else %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Thinking is dropped from every turn, and the last response of a tool has no header after it; R1's prompt thinks.
DEEPSEEK = (
    "{{ bos_token }}{% set ns = namespace(tool=false) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{% set ns.tool = false %}<|User|>{{ m.content }}{% elif m.role == 'tool' %}"
    "{% set ns.tool = true %}<|tool_outputs_begin|>{{ m.content }}<|tool_outputs_end|>{% elif m.tool_calls %}"
    "<|Assistant|><|tool_calls_begin|>{{ m.tool_calls[0].function.name }}\n```json\n"
    "{{ m.tool_calls[0].function.arguments | tojson }}\n```<|tool_calls_end|>{{ eos_token }}{% else %}"
    "{{ '' if ns.tool else '<|Assistant|>' }}{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
    "{% set ns.tool = false %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.tool %}<|Assistant|>PROMPT{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SMOLLM = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are SmolLM.<|im_end|>\n{% endif %}" + CHATML

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
QWEN_TOKENS = (*CHATML_TOKENS, "<think>", "</think>", "<tool_call>", "</tool_call>")
GEMMA_TOKENS = ("<start_of_turn>", "<end_of_turn>")
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")
LLAMA_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
MISTRAL_TOKENS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
DEEPSEEK_TOKENS = ("<|User|>", "<|Assistant|>", "<|tool_calls_begin|>", "<|tool_calls_end|>", "<think>", "</think>")
FINAL = "<|channel|>final<|message|>"
NO_THOUGHT = "<think>\n\n</think>\n\n"
NO_THINKING = {"enable_thinking": False}

FAMILIES = {
    "chatml": Family(CHATML, CHATML_TOKENS, "<|im_end|>"),
    "smollm": Family(SMOLLM, CHATML_TOKENS, "<|im_end|>"),
    "qwen 2.5": Family(QWEN_25, QWEN_TOKENS, "<|im_end|>"),
    "qwen 3": Family(QWEN_3, QWEN_TOKENS, "<|im_end|>", NO_THOUGHT, is_joint=False),
    "qwen 3 without thinking": Family(QWEN_3, QWEN_TOKENS, "<|im_end|>", is_joint=False, options=NO_THINKING),
    "qwen 3.5": Family(QWEN_35, QWEN_TOKENS, "<|im_end|>", "\n</think>\n\n", is_joint=False),
    "qwen 3.5 without thinking": Family(QWEN_35, QWEN_TOKENS, "<|im_end|>", is_joint=False, options=NO_THINKING),
    "nemotron 3": Family(NEMOTRON_3, QWEN_TOKENS, "<|im_end|>", "</think>", is_joint=False),
    "nemotron nano 2": Family(
        NEMOTRON_2, ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"), "\n<SPECIAL_12>", is_joint=False,
        opens_thought=True,
    ),
    "llama 3": Family(LLAMA_3, LLAMA_TOKENS, "<|eot_id|>"),
    "gemma": Family(GEMMA, GEMMA_TOKENS, "<end_of_turn>", has_system=False),
    "gemma 3": Family(GEMMA_3, GEMMA_TOKENS, "<end_of_turn>"),
    "phi 3": Family(PHI_3, (*ROLE_TOKENS, "<|end|>"), "<|end|>"),
    "phi 4": Family(PHI_4, (*CHATML_TOKENS, "<|im_sep|>"), "<|im_end|>"),
    "mistral": Family(MISTRAL, MISTRAL_TOKENS, "<|eos|>", " "),
    "gpt-oss": Family(GPT_OSS, HARMONY_TOKENS, "<|return|>", FINAL, is_joint=False),
    "deepseek v3": Family(DEEPSEEK.replace("PROMPT", ""), DEEPSEEK_TOKENS, "<|eos|>"),
    "deepseek r1 distill": Family(
        DEEPSEEK.replace("PROMPT", "<think>\n"), DEEPSEEK_TOKENS, "<|eos|>", is_joint=False, opens_thought=True
    ),
    "zephyr": Family(ZEPHYR, ROLE_TOKENS, "<|eos|>"),
}  # fmt: skip
