package store

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// ValidationResult is the result of Options.ValidateEnvoyFilters for one object.
type ValidationResult struct {
	Findings []object.Finding
	// time at which Load validates the object again; zero: only when its text changes
	RevalidateAt time.Time
}

// validated is a decoded object with the problems that validation has found.
type validated struct {
	object   *object.Object
	spec     *yaml.Node
	problems []object.Problem
	failed   bool // whether validation has found an error
	fatal    bool // whether validation has found an error other than UnknownField
	unknown  bool // whether validation has found an UnknownField
}

// add adds the problems of findings, each with its line. others is the number of problems that the
// object already has. Beyond maxProblems only errors are added, up to twice as many.
func (v *validated) add(findings []object.Finding, others int) {
	for _, f := range findings {
		p := v.object.NewProblem(f)
		if v.spec != nil {
			p.Line = locate(v.spec, f.Field)
		}
		bad := p.Severity == condition.Error
		v.failed, v.fatal = v.failed || bad, v.fatal || bad && !f.UnknownField
		v.unknown = v.unknown || f.UnknownField
		if n := others + len(v.problems); n < maxProblems || bad && n < 2*maxProblems {
			v.problems = append(v.problems, p)
		}
	}
}

// add adds a validated object to the document's objects, or to its invalid ones.
func (d *document) add(v *validated) {
	d.unknown = d.unknown || v.unknown
	switch {
	case !v.failed:
		d.objects = append(d.objects, v.object)
		return
	case !v.fatal:
		d.tolerable = append(d.tolerable, v.object)
	}
	d.bad = append(d.bad, v.object.Key)
}

// due reports whether the document must be validated again now.
func (d *document) due() bool { return !d.again.IsZero() && !d.again.After(time.Now()) }

func (f *file) due() bool {
	return slices.ContainsFunc(f.documents, func(d readDocument) bool { return d.due() })
}

// validateAll passes the EnvoyFilters that were read to ValidateEnvoyFilters, and adds them to
// their documents.
func (o Options) validateAll(files []*file) {
	var filters []*validated
	var objects []*object.Object
	var in []*document
	for _, f := range files {
		if f == nil {
			continue
		}
		for i := range f.documents {
			d := &f.documents[i].document
			for _, v := range d.filters {
				filters, in = append(filters, v), append(in, d)
				objects = append(objects, v.object)
			}
			d.filters = nil
		}
	}
	verdicts := make([]ValidationResult, len(objects))
	if o.ValidateEnvoyFilters != nil && len(objects) > 0 {
		verdicts = o.ValidateEnvoyFilters(objects)
	}
	for i, v := range filters {
		had := len(v.problems)
		v.add(verdicts[i].Findings, 0)
		in[i].problems = append(in[i].problems, v.problems[had:]...)
		if again := verdicts[i].RevalidateAt; !again.IsZero() && (in[i].again.IsZero() ||
			again.Before(in[i].again)) {
			in[i].again = again
		}
		in[i].add(v)
	}
}

// HasKind reports whether the files contain an object of a kind, valid or not.
func (s *Store) HasKind(kind object.Kind) bool {
	for _, f := range s.files {
		for _, d := range f.documents {
			if slices.ContainsFunc(d.objects, func(o *object.Object) bool { return o.Kind == kind }) ||
				slices.ContainsFunc(d.bad, func(k object.Key) bool { return k.Kind == kind }) {
				return true
			}
		}
	}
	return false
}

// RevalidateInvalid makes the next Load validate again all objects that are invalid or have an
// UnknownField.
func (s *Store) RevalidateInvalid() {
	for _, f := range s.files {
		for i := range f.documents {
			if f.documents[i].doubtful() {
				f.documents[i].again = time.Now()
			}
		}
	}
}

// doubtful reports whether another validation of the same text may have a different result.
func (d *document) doubtful() bool { return d.unknown || len(d.bad) > 0 }
