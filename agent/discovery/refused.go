package discovery

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// Clients refuse resources, not objects (docs/decisions/0054). The feed of a view records which
// newest versions were refused, and stores the last accepted versions for clients that need them.
// This file reports refusals as problems of the objects that the resources were translated from.

// refused processes a change of the refusals in feeds: it overrides the EnvoyFilters of refused
// resources, omits the Telemetries of refused listeners, and reports problems. Only Run may call
// it.
func (s *Server) refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.views {
		snapshot, _ := v.Feed().Current()
		for _, o := range v.OverrideEnvoyFilters(snapshot.AllRefused()) {
			s.options.Logger.Warn("resource refused by proxy, publishing it with earlier EnvoyFilters",
				"type", o.Key.Type, "name", o.Key.Name, "error", o.Reason)
		}
		snapshot, _ = v.Feed().Current()
		for _, u := range v.OmitTelemetry(snapshot.AllRefused()) {
			s.options.Logger.Warn("listener refused by proxy, publishing it without Telemetry",
				"name", u.Key.Name, "error", u.Reason)
		}
	}
	s.reportProblems()
}

// retry makes all views send refused resources to the clients again. Callers hold mu.
func (s *Server) retry() {
	for _, v := range s.views {
		v.RetryEnvoyFilterOverrides()
	}
}

// refusedProblems returns the problems of resources that clients of a view refused.
func (s *Server) refusedProblems(v *served) (all []Problem) {
	for _, o := range v.EnvoyFilterOverrides() {
		for _, filter := range v.SuspectedEnvoyFilters(o) {
			all = append(all, refusedFilter(o, filter))
		}
	}
	snapshot, _ := v.Feed().Current()
	refused := snapshot.AllRefused()
	unobserved := slices.DeleteFunc(v.OmittedTelemetry(), func(u view.OmittedTelemetry) bool {
		return refused[u.Key] != nil
	})
	if len(unobserved) > 0 {
		all = append(all, s.refusedTelemetry(v.ProxyView, unobserved))
	}
	for _, of := range refused {
		if p, ok := s.unenforced(snapshot, of); ok {
			all = append(all, p)
		}
		if of.Retrying || of.BindFailed || blamesOther(refused, of) {
			continue
		}
		all = append(all, refusedProblem(of.Resource, s.likeliest(v.ProxyView, of), of))
	}
	return all
}

// blamesOther reports whether another secret than the refused one is the cause of a client's NACK:
// its message contains a file of the other secret, and none of the refused one. A client may refuse
// several secrets in one NACK.
func blamesOther(all map[resource.Key]*resource.RefusedVersion, of *resource.RefusedVersion) bool {
	if of.Resource.Type != resource.SecretType || mentionsFile(of.Reason, of.Resource.Name) {
		return false
	}
	for key, other := range all {
		if key.Type == resource.SecretType && other.Reason == of.Reason &&
			mentionsFile(of.Reason, key.Name) {
			return true
		}
	}
	return false
}

// mentionsFile reports whether a text contains a file of a secret or its directory.
func mentionsFile(text, secret string) bool {
	_, files, _ := strings.Cut(secret, ":")
	for path := range strings.SplitSeq(files, "~") {
		if mentions(text, path) || mentions(text, filepath.Dir(path)+"/") {
			return true
		}
	}
	return false
}

// mentions reports whether a text contains a name as a whole, not as part of a longer name.
func mentions(text, name string) bool {
	const partOfName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_|"
	for {
		at := strings.Index(text, name)
		if at < 0 || name == "" {
			return false
		}
		end := at + len(name)
		if (at == 0 || strings.IndexByte(partOfName, text[at-1]) < 0) && (end == len(text) ||
			strings.IndexByte(partOfName, text[end]) < 0) {
			return true
		}
		text = text[end:]
	}
}

// keyMismatch is BoringSSL's error if a private key does not belong to the certificate.
const keyMismatch = "KEY_VALUES_MISMATCH"

// described returns a description of a resource for people: its kind and name, or the files or
// credential of a secret.
func described(r *resource.Resource) string {
	pair, isPair := strings.CutPrefix(r.Name, "file-cert:")
	authorities, isRoot := strings.CutPrefix(r.Name, "file-root:")
	switch {
	case r.Type == resource.SecretType && isPair:
		certificate, key, _ := strings.Cut(pair, "~")
		return "certificate in " + certificate + " with the key in " + key
	case r.Type == resource.SecretType && isRoot:
		return "authorities in " + strings.ReplaceAll(authorities, "~", " and ")
	}
	if title, ok := credential.DescribeSecret(r.Name); ok {
		return title
	}
	return r.Type[strings.LastIndexByte(r.Type, '.')+1:] + " " + model.IstioFilterName(r.Name)
}

// refusedProblem returns the problem of a refused resource, at the object that most likely caused
// it.
func refusedProblem(r *resource.Resource, at resource.Origin, of *resource.RefusedVersion) Problem {
	message := fmt.Sprintf("Envoy refused the %s: %s", described(r), of.Reason)
	fix := "correct it; it is not in use until it changes, or a reload tries it again"
	if of.LastAccepted != nil {
		fix = "correct it; the version that Envoy accepted before stays in use until it changes, or a " +
			"reload tries it again"
	}
	files, isPair := strings.CutPrefix(r.Name, "file-cert:")
	if isPair && strings.Contains(of.Reason, keyMismatch) {
		certificate, key, _ := strings.Cut(files, "~")
		message = fmt.Sprintf("%s: the private key is not that of the certificate in %s", key,
			certificate)
		fix = "replace both files; the pair that Envoy accepted before, if any, stays in use"
	}
	if at.Kind == "" {
		return Problem{File: at.File, Line: at.Line, Severity: condition.Error, Message: message,
			Fix: fix}
	}
	return object.ProblemAt(at, condition.Error, message, fix)
}

// refusedFilter returns the problem of an EnvoyFilter that caused a resource to be refused.
func refusedFilter(o view.EnvoyFilterOverride, filter *object.Object) Problem {
	fix := "correct it; it is not in use for this resource"
	if slices.ContainsFunc(o.Filters, func(f *object.Object) bool { return f.Key == filter.Key }) {
		fix = "correct it; its version before stays in use for this resource"
	}
	r := resource.Resource{Type: o.Key.Type, Name: o.Key.Name}
	return Problem{File: filter.File, Line: filter.Line, Object: filter.String(),
		Severity: condition.Error,
		Message:  fmt.Sprintf("Envoy refused the %s: %s", described(&r), o.Reason),
		Fix:      fix + " until it changes, or a reload tries it again"}
}

// refusedTelemetry returns the problem that Envoy refused listeners and uses them without the
// effects of Telemetries. Callers hold mu.
func (s *Server) refusedTelemetry(v *view.ProxyView, all []view.OmittedTelemetry) Problem {
	message := fmt.Sprintf("Envoy refused the Listener %s", all[0].Name)
	if len(all) > 1 {
		message += fmt.Sprintf(" and %d more", len(all)-1)
	}
	message += ", in use without access logs, tracing and metrics of Telemetries: " + all[0].Reason
	const fix = "correct it; a change of a Telemetry, or a reload, tries them again"
	observers := v.TelemetryOrigins()
	if len(observers) == 0 {
		return Problem{File: s.settings.MeshConfigFile, Line: 1, Severity: condition.Error,
			Message: message, Fix: fix}
	}
	return object.ProblemAt(s.newestEdit(observers), condition.Error, message, fix)
}

// newestEdit returns the origin whose object changed last; the first origin if no change is
// recorded. Callers hold mu.
func (s *Server) newestEdit(origins []resource.Origin) resource.Origin {
	for _, e := range slices.Backward(s.edits) {
		for _, o := range origins {
			if e.objects[object.Key{Kind: object.Kind(o.Kind), Namespace: o.Namespace, Name: o.Name}] {
				return o
			}
		}
	}
	return origins[0]
}
