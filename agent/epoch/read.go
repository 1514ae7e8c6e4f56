package epoch

import "slices"

// publish makes the owner's state what readers see, if it changed.
func (s *Supervisor) publish() {
	snapshot := slices.Clone(s.history)
	var live *view
	for _, p := range s.processes {
		p.HandsOver = p.Phase == Live && (s.attempt != nil || s.examining)
		if p.Awaits = ""; p.Phase == Live {
			p.Awaits = s.awaits
		}
		p.MayRefuse = p.Phase == Live && !s.doubt.IsZero()
		snapshot = append(snapshot, p.Epoch)
		if p.Phase == Live {
			live = &view{epoch: p.Epoch, admin: p.admin}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(snapshot, s.snapshot) {
		return
	}
	s.snapshot, s.liveView = snapshot, live
	close(s.changed)
	s.changed = make(chan struct{})
}

// Epochs returns the epochs that ended lately, then those that live, each oldest first.
func (s *Supervisor) Epochs() []Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.snapshot)
}

// Live returns the epoch that serves and its admin; false if there is none. The admin may be lost (Epoch.AdminLost).
func (s *Supervisor) Live() (Epoch, Admin, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.liveView == nil {
		return Epoch{}, nil, false
	}
	return s.liveView.epoch, s.liveView.admin, true
}

// Changed returns a channel that is closed when what Epochs or Live return has changed. Get it before you look.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
