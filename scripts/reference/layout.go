package main

import "text/template"

// document is the data of the template layout.
type document struct{ Title, Version, Body string }

// layout is the template of all pages. Pages load nothing from other sites.
var layout = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
pre, code { font: 14px/1.45 ui-monospace, monospace }
pre { padding: .8rem; overflow: auto; background: color-mix(in srgb, currentColor 7%, transparent) }
table { border-collapse: collapse; width: 100% }
td, th { border: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: .4rem .6rem;
	text-align: left; vertical-align: top }
footer { margin-top: 3rem; font-size: 14px; opacity: .7 }
</style>
</head>
<body>
<nav><a href="index.html">All kinds</a></nav>
<h1>{{.Title}}</h1>
{{.Body}}
<footer>From Istio's API, module istio.io/api {{.Version}}, © Istio Authors, Apache License 2.0.
Changed for Outrider: layout, links, and the table of fields that Outrider does not support.
</footer>
</body>
</html>
`))

var missingLayout = template.Must(template.New("missing").Parse(`<section id="not-supported">
<p>Outrider does not support these fields or values; <code>outrider mesh check</code> says so with
file and line. A * stands for the rest of a name.</p>
<table>
<tr><th>field</th><th>what mesh check says</th></tr>
{{range .}}<tr><td><code>{{.Field}}</code></td><td>{{.Answer}}{{with .Note}}: {{html .}}{{end}}</td></tr>
{{end}}</table>
</section>
`))

var indexLayout = template.Must(template.New("index").Parse(`
<p>Every kind that Outrider's embedded discovery server reads from the YAML files in mesh.d, with
every field. outrider-mesh(5) is the introduction, <code>outrider example list</code> lists tested
configurations, and <code>outrider mesh check</code> validates files.</p>
<table>
{{range .}}<tr><td><a href="{{.File}}">{{.Kind}}</a></td><td>{{html .Summary}}</td></tr>
{{end}}</table>
`))
