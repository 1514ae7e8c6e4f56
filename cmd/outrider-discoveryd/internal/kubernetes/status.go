package kubernetes

import (
	"strconv"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// conditionType is the type of the status condition that tells whether an object is valid.
const conditionType = "PassedAnalysis"

// maxMessage bounds the message of a condition in bytes.
const maxMessage = 2048

// verdict is the content of the condition in an object's status. It is comparable.
type verdict struct {
	status, reason, message string
	generation              int64
}

// verdictOf returns the verdict in a condition.
func verdictOf(c istioCondition) verdict {
	generation, err := strconv.ParseInt(strings.Trim(string(c.ObservedGeneration), `"`), 10, 64)
	if err != nil {
		generation = 0
	}
	return verdict{c.Status, c.Reason, c.Message, generation}
}

// newVerdict returns the verdict for an object with problems.
func newVerdict(problems []object.Problem, generation int64) verdict {
	v := verdict{status: "True", reason: "Valid", generation: generation}
	var lines []string
	for _, p := range problems {
		if p.Severity == condition.Error {
			v.status, v.reason = "False", "Invalid"
		} else if v.reason == "Valid" {
			v.reason = "Warnings"
		}
		line := p.Message
		if p.Field != "" {
			line = p.Field + ": " + line
		}
		if p.Fix != "" {
			line += "; " + p.Fix
		}
		lines = append(lines, line)
	}
	v.message = strings.Join(lines, "\n")
	if len(v.message) > maxMessage {
		const more = " …"
		v.message = strings.ToValidUTF8(v.message[:maxMessage-len(more)], "") + more
	}
	return v
}

// objectStatus holds the verdict for an object, and the verdict that its status has.
type objectStatus struct {
	kind, namespace, name string
	generation            int64
	has                   verdict // verdict in the object's status as last read
	want                  verdict // verdict that was reported last; zero: none yet
}

// set processes an object that was read.
func (w *statusWriter) set(path string, o *istioObject) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.objects[path]
	if s == nil {
		s = &objectStatus{kind: o.Kind, namespace: o.Namespace, name: o.Name}
		w.objects[path] = s
	}
	_, own := o.splitConditions()
	if s.generation, s.has = o.Generation, verdictOf(own); s.has == s.want {
		// the verdict was written before; a later change by another server is not overwritten
		delete(w.due, path)
	}
}

func (w *statusWriter) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, path)
	delete(w.due, path)
}

// report sets the verdicts for all objects from their problems. The problems' files are the paths
// of inputs.
func (w *statusWriter) report(problems []object.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	by := map[string][]object.Problem{}
	for _, p := range problems {
		if w.objects[p.File] != nil {
			by[p.File] = append(by[p.File], p)
		}
	}
	for path, s := range w.objects {
		want := newVerdict(by[path], s.generation)
		if want == s.want {
			continue
		}
		s.want = want
		if want != s.has {
			w.due[path] = struct{}{}
		}
	}
	w.signal()
}
