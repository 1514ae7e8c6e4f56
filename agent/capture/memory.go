package capture

import (
	"encoding/json"
	"os"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// memory is the state that outrider-capture persists in its state file.
type memory struct {
	Protocol  int           `json:"protocol,omitempty"` // of the writer; 0 means 1
	Settings  *Settings     `json:"settings,omitempty"`
	Withdrawn bool          `json:"withdrawn,omitempty"` // on request of the agent
	Until     time.Time     `json:"until,omitzero"`      // end of a trial, for display only
	Ends      time.Duration `json:"ends,omitempty"`      // end of the trial by bootTime
	Expired   bool          `json:"expired,omitempty"`   // the trial was not confirmed
}

// try starts a trial that ends after limit.
func (m *memory) try(limit time.Duration) {
	m.Until, m.Ends, m.Expired = time.Now().Add(limit), bootTime()+limit, false
}

// endTrial ends a trial; the settings stay in force.
func (m *memory) endTrial() { m.Until, m.Expired = time.Time{}, false }

// bootTime returns the time since the boot, which does not jump when the clock is set.
func bootTime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // cannot fail
	return time.Duration(now.Nano())
}

func (m *memory) load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var loaded memory
	if err := json.Unmarshal(text, &loaded); err != nil {
		return err
	}
	if loaded.Settings != nil {
		if err := loaded.Settings.Validate(); err != nil {
			return err
		}
		loaded.Settings.upgrade(loaded.Protocol)
	}
	*m = loaded
	return nil
}

func (m *memory) save(path string) error {
	m.Protocol = protocolVersion
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, text, 0o600)
}
