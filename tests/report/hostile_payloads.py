"""Texts that would do something if anything took them for markup, script, style, a template, a terminal's commands or a
spreadsheet's formula. ``RUN`` calls a function that only the tests define, with the payload's number: if it is ever
called, or anything is asked for over the network, a text was taken for more than text."""

_SCRIPTS = """
<script>RUN</script>
<SCRIPT>RUN</SCRIPT>
<scr<script>ipt>RUN</scr</script>ipt>
<script src=http://example.invalid/x.js></script>
<script src=//example.invalid/x.js></script>
<script type=module>RUN</script>
<script type="text/javascript" async defer>RUN</script>
<script >RUN</script >
<script/x>RUN</script>
<script\t>RUN</script\t>
<script>/*</script><script>*/RUN</script>
</script><script>RUN</script>
</SCRIPT ><script>RUN</script>
</script/><svg onload=RUN>
<!--<script>--></script><script>RUN</script>
<!--</script><img src=x onerror=RUN>
"]};RUN;//
"}]}</script><script>RUN</script>
'};RUN;//
\\"};RUN;//
\u2028RUN//
\u2029RUN//
";RUN//\u2028
</script><!--
]]></script><script>RUN</script>
<![CDATA[<script>RUN</script>]]>
<?xml version="1.0"?><script xmlns="http://www.w3.org/1999/xhtml">RUN</script>
<script>{"a":RUN}</script>
--></script><script>RUN</script>
<script language=vbscript>RUN</script>
<script>RUN<!--
<x:script xmlns:x="http://www.w3.org/1999/xhtml">RUN</x:script>
<script id=live data-chart=x type=application/json>{}</script>
${RUN}
`${RUN}`
"""

_HANDLERS = """
<img src=x onerror=RUN>
<img src=x onerror="RUN">
<img src=x:x onerror='RUN'//
<img/src=x/onerror=RUN>
<img src="x`x" onerror=`RUN`>
<IMG SRC=x OnErRoR=RUN>
<img src=1 href=1 onerror=RUN></img>
<svg onload=RUN>
<svg/onload=RUN>
<body onload=RUN>
<body onpageshow=RUN>
<input autofocus onfocus=RUN>
<select autofocus onfocus=RUN>
<textarea autofocus onfocus=RUN>
<a href=# autofocus onfocus=RUN>x</a>
<details open ontoggle=RUN>x</details>
<video><source onerror=RUN></video>
<video src=x onerror=RUN></video>
<audio src=x onerror=RUN></audio>
<object data=x onerror=RUN></object>
<marquee onstart=RUN>x</marquee>
<div onpointerover=RUN style="position:fixed;inset:0">x</div>
<div onmouseover=RUN style=position:fixed;left:0;top:0;width:999px;height:999px>x</div>
<style onload=RUN></style>
<link rel=stylesheet href=x onerror=RUN>
<iframe onload=RUN></iframe>
<iframe srcdoc="<script>parent.RUN</script>"></iframe>
<p id=x contenteditable onblur=RUN autofocus>x</p>
<div style="animation:x 1s" onanimationstart=RUN>x</div>
<style>@keyframes x{}</style><b style="animation-name:x" onanimationend=RUN>x</b>
<form><button autofocus formaction=javascript:RUN onfocus=RUN>x</button></form>
<dialog open oncancel=RUN><button autofocus>x</button></dialog>
<math><mi onmouseover=RUN xlink:href=javascript:RUN>x</mi></math>
"""

_ATTRIBUTES = """
" onmouseover="RUN
" onfocus="RUN" autofocus="
' onfocus='RUN' autofocus='
"><script>RUN</script>
'><script>RUN</script>
"><img src=x onerror=RUN>
"/><svg onload=RUN>
` onmouseover=RUN x=`
x" id="answer
x" class="failed
x" style="position:fixed;inset:0;background:red
x" href="javascript:RUN
" autofocus onfocus=RUN x="
"onload="RUN
'"><svg/onload=RUN>
\\"><svg onload=RUN>
&quot; onmouseover=&quot;RUN
&#34; onmouseover=&#34;RUN
&#x22;&#x3e;&#x3c;svg onload=RUN&#x3e;
"srcset="http://example.invalid/x.png 1x
title=" onmouseover="RUN
"""

_SVG_AND_MARKUP = """
</title><script>RUN</script>
</title><svg onload=RUN>
</desc><script>RUN</script>
</text><script>RUN</script>
</svg><script>RUN</script>
</style><script>RUN</script>
</style ><img src=x onerror=RUN>
</textarea><script>RUN</script>
</pre><script>RUN</script>
</template><script>RUN</script>
</noscript><script>RUN</script>
</table><script>RUN</script>
</td></tr></table></main><h1>owned</h1>
</details></section></main></body></html><script>RUN</script>
<svg><script>RUN</script></svg>
<svg><a xlink:href=javascript:RUN><text x=20 y=20>x</text></a></svg>
<svg><animate onbegin=RUN attributeName=x dur=1s>
<svg><set onbegin=RUN attributeName=x>
<svg><use href="data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'><script>RUN</script></svg>#x">
<svg><foreignObject><iframe srcdoc="<script>parent.RUN</script>"></iframe></foreignObject></svg>
<svg><style>*{background:url(http://example.invalid/x)}</style></svg>
<svg><image href=http://example.invalid/x.png></svg>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=RUN&gt;">
<form><math><mtext></form><form><mglyph><style></math><img src=x onerror=RUN>
<svg></p><style><a id="</style><img src=x onerror=RUN>">
<noscript><p title="</noscript><img src=x onerror=RUN>">
<listing>&lt;img src=x onerror=RUN&gt;</listing>
<table><caption><svg><style><!--</style></svg></caption><img src=x onerror=RUN></table>
<select><iframe></select><img src=x onerror=RUN>
<xmp><p title="</xmp><svg/onload=RUN>">
<iframe src=http://example.invalid/></iframe>
<object data=http://example.invalid/x.swf></object>
<embed src=http://example.invalid/x>
<base href=http://example.invalid/>
<meta http-equiv=refresh content="0;url=http://example.invalid/">
<meta http-equiv=Content-Security-Policy content="script-src *">
<link rel=stylesheet href=http://example.invalid/x.css>
<link rel=prefetch href=http://example.invalid/x>
<frameset onload=RUN>
<form action=http://example.invalid/><input name=a autofocus><input type=submit></form>
<isindex action=javascript:RUN type=image>
<a href=http://example.invalid/ ping=http://example.invalid/ping>x</a>
<h1 id=answer>another answer</h1>
<section id=memory></section>
<input type=radio name=language checked>
<template id=sort-words><img src=x onerror=RUN></template>
<b><i><u><s><p><div><table><tr><td>
</p></li></ul></div></section></article>
"""

_STYLES = """
body{display:none}
</style><style>body{display:none}
<style>*{display:none!important}</style>
<style>@import url(http://example.invalid/x.css);</style>
<div style="background:url(http://example.invalid/x.png)">x</div>
<div style="width:99999px">x</div>
<div style="position:fixed;inset:0;background:#000">x</div>
x;background:url(http://example.invalid/x)
url(http://example.invalid/x)
expression(RUN)
--ink:red;}body{display:none}
#000031 #000011 #000021
var(--ink) url(#x) id="x" class="y"
@font-face{font-family:x;src:url(http://example.invalid/x.woff)}
<link rel=icon href=http://example.invalid/favicon.ico>
"""

_TEMPLATES = """
{{ 7*7 }}{{ RUN }}
{% for x in (1,2,3) %}{{ x }}{% endfor %}
{{ self.__init__.__globals__ }}
{{ config.__class__.__mro__ }}
{{ ''.__class__.__mro__[1].__subclasses__() }}
{{ cycler.__init__.__globals__.os.popen('id').read() }}
{% include '/etc/passwd' %}
{% import 'os' as os %}
{# comment #}
{x}
{0}
{}
{x.__class__}
{x.__class__.__init__.__globals__}
{value!r:>999999}
{engine:mib}
{unknown_name}
%s %(x)s %n %d
%(model)s
$name ${name} $(id) `id`
#{RUN}
<%= RUN %>
[[${RUN}]]
datum.owned = RUN
datum['constructor']['constructor']('RUN')()
toString.constructor.constructor('RUN')()
{"expr": "RUN"}
{"signal": "RUN"}
{"url": "http://example.invalid/data.json"}
{"$schema": "http://example.invalid/schema.json"}
{"href": "javascript:RUN"}
__proto__
constructor
hasOwnProperty
event.view.RUN
"""

_ADDRESSES = """
javascript:RUN
JaVaScRiPt:RUN
java\tscript:RUN
\x01javascript:RUN
javascript&colon;RUN
&#106;&#97;&#118;&#97;script:RUN
data:text/html,<script>RUN</script>
data:text/html;base64,PHNjcmlwdD5vd25lZCgnYjY0Jyk8L3NjcmlwdD4=
vbscript:RUN
file:///etc/passwd
http://example.invalid/x
//example.invalid/x
https://user:pass@example.invalid/
blob:http://example.invalid/x
view-source:http://example.invalid
"""

_MARKDOWN = """
[x](javascript:RUN)
![x](http://example.invalid/x.png)
![x](x "onerror=RUN")
<javascript:RUN>
<http://example.invalid/auto>
[x]: http://example.invalid/x
[x][1]
```\n</code><script>RUN</script>
# a heading of its own
- a list
1. a list
> a quote
| a | b |\n|---|---|\n| 1 | 2 |
***bold*** __bold__ ~~gone~~ `code`
a\\|b \\` \\\\
---
    indented <script>RUN</script>
<details><summary>x</summary>
&lt;script&gt;RUN&lt;/script&gt;
&amp;lt;script&amp;gt;
@someone #12 :smile: $x$
"""

_FORMULAS = """
=1+1
=cmd|' /C calc'!A0
=HYPERLINK("http://example.invalid/","x")
=IMPORTXML("http://example.invalid/","//a")
+1+cmd|' /C calc'!A0
-1+cmd|' /C calc'!A0
@SUM(1+1)*cmd|' /C calc'!A0
\t=1+1
\r=1+1
"=1+1"
＝1+1
"""

_CHARACTERS = [
    "\x1b[31mred\x1b[0m", "\x1b]0;owned\x07", "\x1b]8;;http://example.invalid/\x07x\x1b]8;;\x07", "\x1b[2J\x1b[H",
    "\x9b31mC1", "\x1bP$q\x1b\\", "\x07bell", "a\rb overwritten", "a\x08\x08b", "\x7fdelete", "a\x00b NUL",
    "\u202ereversed\u202c", "\u2066isolate\u2069", "\u200fright\u200e", "\u061cmark", "zero\u200bwidth\u200djoin\ufeff",
    "שלום עולם", "مرحبا بالعالم", "\u0e01\u0e33" * 20, "e" + "\u0301" * 80, "w" * 5000, "한" * 2000, "語" * 1500,
    "👩‍👩‍👧‍👦" * 100, "a\u00ad" * 500, "\u3000" * 300, " " * 500 + "x", "\n" * 60 + "x", "a\tb\tc" * 50, "\ufffe\uffff",
    "\x85next line", "\x0bvertical\x0cform feed", "İıſK", "A" * 64 + "://" + "b" * 900, "x" * 70000, "\ud800half",
    "", " ", "0", "-", "null", "NaN", "1e999", "None", "true", "../../etc/passwd", "C:\\con\\nul", "a/b/../c",
    "'; DROP TABLE trials; --", "\\", "\\u003cscript\\u003eRUN\\u003c/script\\u003e", "%3Cscript%3ERUN%3C/script%3E",
    "+ADw-script+AD4-RUN+ADw-/script+AD4-", "<\x00script>RUN</script>", "<scr\x00ipt>RUN</scr\x00ipt>",
    "＜script＞RUN＜/script＞", "\xbcscript\xbeRUN\xbc/script\xbe", "<img src=x onerror\x0b=RUN>",
    "<\u200bscript>RUN</script>",
]  # fmt: skip
# They swallow what follows them, so that nothing behind them would be seen to run: they stand last.
_SWALLOWING = ["<plaintext>", "<textarea>", "<title>", "<xmp>", "<noscript>", "<style>", "<iframe>", "<!--", "<select>"]


def _all() -> tuple[str, ...]:
    groups = (
        _SCRIPTS, _HANDLERS, _ATTRIBUTES, _SVG_AND_MARKUP, _STYLES, _TEMPLATES, _ADDRESSES, _MARKDOWN, _FORMULAS,
    )  # fmt: skip
    found = [line for group in groups for line in group.strip("\n").split("\n")]
    found += [*_CHARACTERS, *_SWALLOWING]
    return tuple(text.replace("RUN", f"owned({number})") for number, text in enumerate(found))


PAYLOADS = _all()
# What SQLite, a file's name or a TOML file can hold.
ENCODABLE = tuple(text.encode(errors="replace").decode() for text in PAYLOADS)
