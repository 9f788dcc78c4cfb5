//! The look of the report: one style sheet, light and dark, no network.

/// Fonts that have Chinese, Japanese and Korean come after the system's own.
pub(crate) const STYLE: &str = r#"
:root{color-scheme:light dark;--page:#f7f6f3;--card:#fff;--ink:#1d1c1a;--soft:#6b6862;--rule:#e4e1da;
--good:#1a7f4b;--good-bg:#e6f4ec;--bad:#b3261e;--bad-bg:#fbe9e7;--plain-bg:#edebe6;
--c1:#2b63c6;--c2:#d0661a;--c3:#7d7a74}
@media(prefers-color-scheme:dark){:root{--page:#151515;--card:#1e1e1d;--ink:#ecebe7;--soft:#a09d96;--rule:#363532;
--good:#5fd096;--good-bg:#173326;--bad:#ff8a80;--bad-bg:#3d1d1b;--plain-bg:#2a2927;
--c1:#7aa7ff;--c2:#ffa35c;--c3:#98958e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.5;font-size:15px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","PingFang TC","Microsoft JhengHei","Noto Sans CJK TC",
"Noto Sans TC","Hiragino Sans","Noto Sans CJK JP","Apple SD Gothic Neo","Noto Sans CJK KR","WenQuanYi Micro Hei",
"Noto Color Emoji",sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}
header p{margin:0;color:var(--soft)}
h1{font-size:28px;line-height:1.25;margin:4px 0 0;letter-spacing:-.01em}
h2{font-size:13px;font-weight:650;text-transform:uppercase;letter-spacing:.06em;color:var(--soft);margin:40px 0 12px}
.verdict{display:inline-block;margin:16px 0 0;padding:7px 16px;border-radius:999px;font-weight:650;background:var(--plain-bg)}
.verdict.good,.pass{color:var(--good);background:var(--good-bg)}
.verdict.bad,.fail{color:var(--bad);background:var(--bad-bg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:12px;margin:24px 0 0;padding:0}
.tile,figure,.card{background:var(--card);border:1px solid var(--rule);border-radius:12px}
.tile{padding:13px 16px}
.tile dt{color:var(--soft);font-size:13px}
.tile dd{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.35}
.tile small{display:block;color:var(--soft);font-size:13px;font-weight:400}
.card{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:10px 16px;border-top:1px solid var(--rule)}
thead th{border-top:0;color:var(--soft);font-size:13px;font-weight:500}
tbody th{font-weight:500}
.pass,.fail{display:inline-block;border-radius:999px;padding:1px 10px;font-size:13px;font-weight:650}
.samples{table-layout:fixed;min-width:540px}
.samples th:first-child{width:24%}
.samples td,.samples tbody th,.facts td{white-space:pre-wrap;overflow-wrap:anywhere}
.same{color:var(--soft)}
.facts th{width:24%;color:var(--soft);font-weight:400}
.facts tr:first-child>*{border-top:0}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:16px}
figure{margin:0;padding:14px 14px 6px}
figure.wide{grid-column:1/-1;overflow-x:auto}
.wide .plot{min-width:660px}
figcaption{display:flex;flex-wrap:wrap;gap:2px 18px;align-items:baseline;padding:0 4px 4px}
figcaption b{font-weight:600;margin-right:auto}
.key{display:inline-flex;align-items:center;gap:6px;color:var(--soft);font-size:13px}
.key svg{width:22px;height:10px}
.plot{display:block;width:100%;height:auto;font-size:12px}
.plot text{fill:var(--soft);font-variant-numeric:tabular-nums}
.plot .y,.plot .name{text-anchor:end}.plot .x,.plot .none{text-anchor:middle}
.grid{stroke:var(--rule)}.base{stroke:var(--c3)}
path{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.c1 path{stroke:var(--c1)}.c2 path{stroke:var(--c2)}.c3 path{stroke:var(--c3)}
.c1 circle{fill:var(--c1)}.c2 circle{fill:var(--c2)}.c3 circle{fill:var(--c3)}
.faint path{stroke-width:1;opacity:.5}.dashed path{stroke-dasharray:5 4}
pre{margin:0;padding:14px 16px;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Noto Sans Mono CJK TC",monospace}
ul{margin:0;padding:12px 16px 12px 34px}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media print{body{background:#fff}.tile,figure,.card{break-inside:avoid}}
"#;
