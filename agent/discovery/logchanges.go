package discovery

import (
	"log/slog"

	"outrider.org/outrider/agent/discovery/object"
)

// logChanges logs each changed object with its file and line. After maxEvents objects it logs only
// how many more there are.
func (s *Server) logChanges(changes []object.Change) {
	for i, c := range changes {
		if i == maxEvents {
			s.options.Logger.Info("too many mesh objects changed, not logging the rest",
				"objects", len(changes)-maxEvents)
			return
		}
		what, is := "mesh object changed", c.New
		switch {
		case c.Old == nil:
			what = "mesh object added"
		case c.New == nil:
			what, is = "mesh object removed", c.Old
		}
		s.options.Logger.Info(what, slog.String("object", is.Key.String()),
			slog.String("file", is.File), slog.Int("line", is.Line))
	}
}
