"""How the families of models write calls of tools, told apart by their chat templates.

Sources, each the family's own documentation of its format: Hermes and Qwen 2.5/3 (`<tool_call>` around one object),
SmolLM2 (`<tool_call>` around a list), Mistral (`[TOOL_CALLS]` before a list), Llama 3.1 and later (a bare object, whose
arguments are called `parameters`). A template that knows no tools is given SmolLM2's form in a system message.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """One way to write calls.

    begin, end      around a call, or around a list of them; an empty `begin`: the output begins with a call
    gap             between these and the JSON
    is_list         calls stand in a list, else each on its own with `separator` between two
    arguments_name  of the arguments in a call
    call_id_length  characters that the template wants an id to have, 0: any number
    """

    begin: str
    end: str
    gap: str
    is_list: bool
    separator: str
    arguments_name: str = "arguments"
    call_id_length: int = 0
    optional_begin: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """What calls are found by."""
        return tuple(filter(None, (self.begin, self.end, self.optional_begin)))


HERMES = ToolStyle("<tool_call>", "</tool_call>", gap="\n", is_list=False, separator="\n")
SMOLLM = ToolStyle("<tool_call>", "</tool_call>", gap="", is_list=True, separator="")
MISTRAL = ToolStyle("[TOOL_CALLS]", "", gap="", is_list=True, separator="", call_id_length=9)
LLAMA = ToolStyle(
    "", "", gap="", is_list=False, separator="; ", arguments_name="parameters", optional_begin="<|python_tag|>"
)


def style_of(template_text: str, *, knows_tools: bool) -> ToolStyle:
    """Of a template by the text that it can write; `knows_tools`: it reads the variable of that name."""
    if not knows_tools:
        return SMOLLM
    if MISTRAL.begin in template_text:
        return MISTRAL
    if HERMES.begin in template_text:
        return HERMES
    if "parameters" in template_text or LLAMA.optional_begin in template_text:
        return LLAMA
    return HERMES
