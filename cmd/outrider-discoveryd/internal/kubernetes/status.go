package kubernetes

import (
	"strconv"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// conditionType is the type of the status condition that reports whether an object is valid.
const conditionType = "PassedAnalysis"

// maxMessage is the maximum length of a condition's message in bytes.
const maxMessage = 2048

// verdict is the statement of a condition about the validity of an object. It is comparable.
type verdict struct {
	status, reason, message string
	generation              int64
}

// verdictOf returns the verdict that a condition contains.
func verdictOf(c istioCondition) verdict {
	generation, err := strconv.ParseInt(strings.Trim(string(c.ObservedGeneration), `"`), 10, 64)
	if err != nil {
		generation = 0
	}
	return verdict{c.Status, c.Reason, c.Message, generation}
}

// newVerdict returns the verdict for an object of a generation with the given problems.
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

// objectStatus holds the verdict of this server for an object, and the verdict in the object's
// status.
type objectStatus struct {
	kind, namespace, name string
	generation            int64
	has                   verdict // verdict in the object's status when it was last read
	want                  verdict // this server's last verdict; zero: none yet
}

// set records the generation of an object and the verdict in its status.
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
		// The verdict has been written. If another server overwrites it later, it is not written
		// again.
		delete(w.due, path)
	}
}

func (w *statusWriter) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, path)
	delete(w.due, path)
}

// report computes the verdicts for all objects, and schedules the writes of those that have
// changed. A problem's File is the path of the object's input.
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
