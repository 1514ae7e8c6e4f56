package identity_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// rotations returns how many times each of habits replaces the files: $OUTRIDER_ROTATIONS, or 20.
func rotations(t *testing.T) int {
	asked := os.Getenv("OUTRIDER_ROTATIONS")
	if asked == "" {
		return 20
	}
	n, err := strconv.Atoi(asked)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// habits are the ways in which programs replace the files of a certificate and its key. pause waits
// a random time.
var habits = map[string]func(r *rig, n int, chain, key []byte, pause func()){
	"rename, certificate first": func(r *rig, _ int, chain, key []byte, pause func()) {
		r.write("cert.pem", chain)
		pause()
		r.write("key.pem", key)
	},
	"rename, key first": func(r *rig, _ int, chain, key []byte, pause func()) {
		r.write("key.pem", key)
		pause()
		r.write("cert.pem", chain)
	},
	"in place, certificate first": func(r *rig, _ int, chain, key []byte, pause func()) {
		r.overwrite("cert.pem", chain, pause)
		pause()
		r.overwrite("key.pem", key, pause)
	},
	"in place, key first": func(r *rig, _ int, chain, key []byte, pause func()) {
		r.overwrite("key.pem", key, pause)
		pause()
		r.overwrite("cert.pem", chain, pause)
	},
	"symlink farm": func(r *rig, n int, chain, key []byte, _ func()) {
		set := fmt.Sprintf("..set%d", n)
		if err := os.Mkdir(r.path(set), 0o700); err != nil {
			r.t.Fatal(err)
		}
		r.write(filepath.Join(set, "cert.pem"), chain)
		r.write(filepath.Join(set, "key.pem"), key)
		r.link(set, "..data")
		for _, name := range []string{"cert.pem", "key.pem"} {
			if n == 0 {
				r.link(filepath.Join("..data", name), name)
			}
		}
		if n > 0 {
			_ = os.RemoveAll(r.path(fmt.Sprintf("..set%d", n-1)))
		}
	},
}

// overwrite writes a file in place, in two halves.
func (r *rig) overwrite(name string, text []byte, pause func()) {
	r.t.Helper()
	file, err := os.OpenFile(r.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer file.Close()
	for _, half := range [][]byte{text[:len(text)/2], text[len(text)/2:]} {
		if _, err := file.Write(half); err != nil {
			r.t.Fatal(err)
		}
		pause()
	}
}

func (r *rig) link(target, name string) {
	r.t.Helper()
	if err := os.Symlink(target, r.path(name+".next")); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path(name+".next"), r.path(name)); err != nil {
		r.t.Fatal(err)
	}
}

// However a program replaces the files of a certificate and its key, and however long it pauses in
// between, each matching pair is published, and never a pair that does not match.
func TestFiles_EveryRotationIsServed(t *testing.T) {
	for habit, replace := range habits {
		t.Run(habit, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
			pairs := make([][2][]byte, 2)
			for i := range pairs {
				pairs[i][0], pairs[i][1] = r.root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
			}
			stop := r.inspect()
			defer stop()
			pause := func() {
				if rand.IntN(2) == 0 {
					time.Sleep(rand.N(5 * time.Millisecond)) //house:sleep varies the pauses
				}
			}
			for n := range rotations(t) {
				pair := pairs[n%len(pairs)]
				replace(r, n, pair[0], pair[1], pause)
				r.awaitChain(identity.DefaultSecret, pair[0])
				pause()
			}
		})
	}
}

// inspect checks each published version of the default secret until stop is called.
func (r *rig) inspect() (stop func()) {
	ended := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			_, next := r.feed.Current()
			r.checkPair(identity.DefaultSecret)
			select {
			case <-next:
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		wait.Wait()
	}
}
