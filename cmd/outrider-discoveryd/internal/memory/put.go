package memory

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

// put processes a request to write an object. It refuses an invalid object; the response then lists
// one problem per line.
func (m *Source) put(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, fmt.Sprintf("cannot read the object (at most %d bytes): %v", maxBody, err),
			http.StatusRequestEntityTooLarge)
		return
	}
	path := m.path(r)
	o, problems := m.parse(path, text)
	key := object.Key{Kind: object.Kind(r.PathValue("kind")), Namespace: r.PathValue("namespace"),
		Name: r.PathValue("name")}
	switch {
	case len(problems) > 0:
	case o == nil:
		problems = []string{path + ": has no object; write one in YAML or JSON"}
	case o.Key != key:
		problems = []string{fmt.Sprintf("%s: is %s; write it to /objects/%s/%s/%s", path, o.Key,
			o.Kind, o.Namespace, o.Name)}
	case m.registry && o.Kind != object.ServiceEntry:
		problems = []string{path + ": a registry has no " + string(o.Kind) + "; write a ServiceEntry"}
	}
	if len(problems) > 0 {
		http.Error(w, strings.Join(problems, "\n"), http.StatusUnprocessableEntity)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.texts[path]
	if !known && len(m.texts) >= maxObjects || m.bytes-len(before)+len(text) > maxBytes {
		http.Error(w, fmt.Sprintf("more than %d objects or %d bytes; delete some", maxObjects,
			maxBytes), http.StatusInsufficientStorage)
		return
	}
	m.texts[path] = text
	m.bytes += len(text) - len(before)
	in := store.SourceInput{Path: path, Text: text}
	if m.registry {
		in = store.SourceInput{Path: path, Objects: []*object.Object{service(o, path)}}
	}
	m.deliver(in)
	w.WriteHeader(http.StatusNoContent)
}

// parse returns the object in a text, nil if there is none, and the errors in it as texts.
func (m *Source) parse(path string, text []byte) (o *object.Object, problems []string) {
	scratch := store.New(store.Options{Namespace: "default", Validate: validate.Object,
		Sources: []string{m.Name()}})
	changes := scratch.ApplyUpdates([]store.SourceUpdate{{Source: m.Name(),
		Inputs: []store.SourceInput{{Path: path, Text: text}}}})
	for _, p := range scratch.Problems() {
		if p.Severity == condition.Error {
			problems = append(problems, p.String())
		}
	}
	if len(changes) > 1 {
		problems = append(problems, path+": has several objects; write one")
	}
	if len(changes) == 1 {
		o = changes[0].New
	}
	return o, problems
}

// service returns the ServiceEntry that a registry delivers for a written one. Its name contains a
// colon, so no object from another source can have it.
func service(o *object.Object, path string) *object.Object {
	made := *o
	made.Name, made.File = "service:"+o.Name, path
	return &made
}
