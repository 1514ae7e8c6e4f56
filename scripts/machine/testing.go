package machine

import (
	"testing"
)

// BootForTest boots a machine for a test, and removes it when the test ends.
func BootForTest(t testing.TB, options Options) *Machine {
	t.Helper()
	m, err := Boot(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// MustRun is like Run but fails the test on an error.
func (m *Machine) MustRun(t testing.TB, program string, arguments ...string) string {
	t.Helper()
	out, err := m.Run(t.Context(), program, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
