package identity

import (
	"errors"
	"testing"
	"time"
)

// The methods of an entry lead to the states that the table in the comment of state shows.
func TestEntry_States(t *testing.T) {
	ended := map[string]bool{}
	worker := func(name string) *worker {
		return &worker{stop: func() { ended[name] = true }}
	}
	first, second, third := worker("first"), worker("second"), worker("third")
	version, now := &material{}, time.Now()
	e := &entry{}
	for _, step := range []struct {
		name  string
		do    func()
		want  state
		ended []string
	}{
		{"start", func() { e.start(first) }, obtaining, nil},
		{"a failure", func() { e.fail(errors.New("no"), now, false) }, obtaining, nil},
		{"a version", func() { e.succeed(); e.current = version }, provided, nil},
		{"new settings", func() { e.supersede() }, superseded, nil},
		{"their worker", func() { e.start(second) }, replacing, nil},
		{"others", func() { e.supersede() }, superseded, []string{"second"}},
		{"the roots come with a certificate", func() { e.attach(version) }, idle, []string{"first"}},
		{"a worker again", func() { e.start(third) }, provided, nil},
		{"roots with a certificate are not wanted", func() { e.attach(&material{}) }, provided, nil},
		{"refused settings", func() { e.withdraw() }, idle, []string{"third"}},
	} {
		clear(ended)
		step.do()
		if got := e.state(); got != step.want {
			t.Errorf("%s: state %d, want %d", step.name, got, step.want)
		}
		if len(ended) != len(step.ended) {
			t.Errorf("%s: ended %v, want %v", step.name, ended, step.ended)
		}
		for _, name := range step.ended {
			if !ended[name] {
				t.Errorf("%s: worker %s continues", step.name, name)
			}
		}
	}
	if e.current != nil {
		t.Error("the version of refused settings remains")
	}
}
