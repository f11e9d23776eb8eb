"""Texts that a template made are kept: in a log each request is compared with others several times over, and every
rendering costs a process."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering

_MOST_KEPT = 512


class KnownTexts:
    """One template's texts, the latest few hundred."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._texts: OrderedDict[bytes, str | ChatTemplateError] = OrderedDict()

    def of(self, renderings: Sequence[Rendering], now: datetime) -> list[str | ChatTemplateError]:
        """As ``ChatTemplate.render_each`` at ``now``; what is not known yet is rendered in one process. Raises as it
        does."""
        keys = [_key(rendering, now) for rendering in renderings]
        texts = {key: self._texts[key] for key in keys if key in self._texts}
        missing = {key: rendering for key, rendering in zip(keys, renderings, strict=True) if key not in texts}
        if missing:
            made = self._template.render_each(list(missing.values()), clock=lambda: now)
            texts |= zip(missing, made, strict=True)
        for key in keys:
            self._texts[key] = texts[key]
            self._texts.move_to_end(key)
        while len(self._texts) > _MOST_KEPT:
            self._texts.popitem(last=False)
        return [texts[key] for key in keys]


def _key(rendering: Rendering, now: datetime) -> bytes:
    """Of all that a template is given, the order of keys included."""
    return hashlib.sha256(repr((rendering, now)).encode("utf-8", "surrogatepass")).digest()
