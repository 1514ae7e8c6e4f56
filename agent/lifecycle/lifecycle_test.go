package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// fake is a component that logs its start and end.
type fake struct {
	Readiness
	name  string
	log   *[]string
	fails chan error
}

func (f *fake) Name() string { return f.name }

func (f *fake) Run(ctx context.Context) error {
	*f.log = append(*f.log, "start "+f.name)
	f.MarkReady()
	f.MarkReady() // no effect
	defer func() { *f.log = append(*f.log, "end "+f.name) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.fails:
		return err
	}
}

func TestGroup_StopsInReverseOrder(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		stop func(detach context.CancelFunc, middle *fake)
		want error
		log  []string
	}{
		"context ends": {stop: func(detach context.CancelFunc, _ *fake) { detach() },
			log: []string{"end c", "end b", "end a"}},
		"a part fails": {stop: func(_ context.CancelFunc, middle *fake) { middle.fails <- broken },
			want: broken, log: []string{"end b", "end c", "end a"}},
		"a part returns": {stop: func(_ context.CancelFunc, middle *fake) { middle.fails <- nil },
			log: []string{"end b", "end c", "end a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log []string
				ctx, detach := context.WithCancel(t.Context())
				group := NewGroup(ctx)
				var all []*fake
				for _, name := range []string{"a", "b", "c"} {
					f := &fake{name: name, log: &log, fails: make(chan error)}
					all = append(all, f)
					group.Start(f)
					if err := group.Await(f); err != nil {
						t.Error(err)
					}
				}
				if diff := cmp.Diff([]string{"start a", "start b", "start c"}, log); diff != "" {
					t.Error(diff)
				}
				log = nil
				go test.stop(detach, all[1])
				if err := group.Wait(); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if diff := cmp.Diff(test.log, log); diff != "" {
					t.Error(diff)
				}
				detach()
			})
		})
	}
}

func TestGroup_AwaitEndsWithTheGroup(t *testing.T) {
	group := NewGroup(t.Context())
	broken := errors.New("broken")
	go group.Fail(broken)
	if err := group.Await(&fake{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Await returned %v", err)
	}
	if err := group.Wait(); !errors.Is(err, broken) {
		t.Errorf("Wait returned %v", err)
	}
}
