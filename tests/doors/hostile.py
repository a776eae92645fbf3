"""Fifty texts that have broken pages elsewhere: each is data, wherever it comes up."""

from __future__ import annotations

HOSTILE = (
    # Tags, and what browsers make of broken ones.
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    '<a href="javascript:alert(1)">x</a>',
    "<body onload=alert(1)>",
    "</title></head><body><h1>gone",
    "</textarea><script>alert(1)</script>",
    "</pre></td></tr></table></div>",
    "<!-- <script>alert(1)</script>",
    "--><b>bold</b>",
    "<![CDATA[<b>x</b>]]>",
    "<<b>script>alert(1)<</b>/script>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><button>",
    "<base href=//evil.example>",
    # Out of an attribute.
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    '"><b>x</b>',
    "`onload=alert(1)`",
    'x" style="position:fixed',
    "&quot;><script>alert(1)</script>",
    "&lt;b&gt;&#60;i&#62;&amp;amp;",
    # Templates and formats.
    "{{ settings.SECRET_KEY }}",
    "{% load static %}{% debug %}",
    "{{ 7|add:7 }}{# gone #}",
    "${7*7}#{7*7}<%= 7*7 %>",
    "%s %d %(password)s %n %%",
    "{0} {x.__class__} {!r} {{}}",
    # URLs.
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)//",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/x?a=b&c=d#e",
    "../../../../etc/passwd",
    "a?b=c&d=e;f#g%00%2e%2e%2f",
    # SQL and JSON.
    "'; DROP TABLE pgqueue_job; --",
    '" OR 1=1 --',
    ']}</script><!--{"a":[',
    '\\u003cscript\\u003e\\\\"\\',
    # Nothing at all, as people and programs write it.
    "null",
    "undefined",
    "\\0\\x00\\u0000",
    # Letters that are not what they seem.
    "\u202egnp.exe\u202c\u2066x\u2069\u200f",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033da\u0334\u0319\u0324\u0300l \U0001f4a9\ufe0f\u200d\U0001f680\ufeff",
    # Lines and terminals.
    "a\r\nSet-Cookie: x=1\r\n\r\n<b>body</b>\x0b\x0c\x85\u2028\u2029",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x7f",
    # Long.
    "W" * 5_000,
)
