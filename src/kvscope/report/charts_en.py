"""What charts say in English: under the pointer where scripts run, and about their files."""

CHARTS: dict[str, str] = {
    "tip.x": "x",
    "tip.y": "y",
    "tip.text": "name",
    "tip.color": "part",
    "tip.from": "{what}, from",
    "tip.to": "{what}, to",
    "charts.written": "Wrote {count} charts to {folder}, each as SVG and PNG.",
    "charts.no_korean_font": "The PNG files have English labels: no font of this machine has Hangul. The SVG files are "
    "in Korean. To have both, install a Korean font (Debian, Ubuntu: apt install fonts-nanum), then run this again "
    "with --force.",
    "charts.hangul_lost": "Names in Korean are empty boxes in the PNG files: no font of this machine has Hangul. The "
    "SVG files hold them as text. Install a Korean font (Debian, Ubuntu: apt install fonts-nanum), then run this again "
    "with --force.",
}
