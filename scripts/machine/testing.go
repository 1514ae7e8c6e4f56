package machine

import (
	"testing"
)

// Test boots a machine for a test, and removes it with the test.
func Test(t testing.TB, options Options) *Machine {
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

// MustRun runs a program in the machine as Run does, and fails the test if it fails.
func (m *Machine) MustRun(t testing.TB, program string, arguments ...string) string {
	t.Helper()
	out, err := m.Run(t.Context(), program, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
