package discovery

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/typedconfig"
)

// filterCheck validates objects. If Envoy is newer than the linked version of Envoy's API, unknown
// fields in EnvoyFilters are warnings, not errors.
type filterCheck struct {
	typed    *typedconfig.Checker // checks types that are not linked; nil: only Envoy checks them
	newer    func() bool
	reverted func() *lastgood.RevertedVersions
	register bool // see Options.RegisterWorkloads
	remote   bool // the proxies are on other hosts
}

// check returns the filterCheck for the server's options and settings.
func (s *Server) check() filterCheck {
	return filterCheck{s.options.TypedConfigs, s.newer.Load, s.reverted.Load,
		s.options.RegisterWorkloads, !s.options.FilesAreLocal}
}

const revertedFix = "correct it; the version before stays in use until it changes, or a reload " +
	"tries it again"

// object returns an object's findings; see validate.Object.
func (c filterCheck) object(o *object.Object) []object.Finding {
	findings := validate.Object(o)
	for i, f := range findings {
		if f.UnknownField && c.newer() {
			findings[i].Severity = condition.Warning
			findings[i].Fix = "it has no effect: this version of Outrider has the API of Envoy " +
				typedconfig.LinkedEnvoyAPI
		}
	}
	if o.Kind == object.WorkloadGroup && !c.register {
		findings = append(findings, object.Finding{Severity: condition.Warning,
			Message: "a WorkloadGroup has no effect: no workload registers itself with this server",
			Fix: "write a WorkloadEntry for each workload, or set [registration] enabled of " +
				"outrider-discoveryd"})
	}
	if o.Kind == object.ProxyConfig && c.remote {
		findings = append(findings, object.Finding{Severity: condition.Warning,
			Message: "a ProxyConfig has no effect: the processes of proxies are those of their hosts",
			Fix:     remoteFix})
	}
	if message := c.reverted().WhyObjectReverted(o); message != "" {
		findings = append(findings, object.Finding{Severity: condition.Error, Message: message,
			Fix: revertedFix})
	}
	return findings
}

// unlinked checks the typed_configs in EnvoyFilters whose types are not linked.
func (c filterCheck) unlinked(filters []*object.Object) []store.ValidationResult {
	verdicts := make([]store.ValidationResult, len(filters))
	if c.typed == nil {
		return verdicts
	}
	var configs []typedconfig.Config
	var of []int
	var at []string
	for i, o := range filters {
		read, _ := patch.Parse(o)
		for _, f := range read.UnlinkedMessages {
			value, err := protojson.Marshal(f.Value)
			if err != nil {
				continue // never happens: the config was decoded from JSON
			}
			configs = append(configs, typedconfig.Config{Type: f.Type, Value: value})
			of, at = append(of, i), append(at, f.Field)
		}
	}
	for i, answer := range c.typed.Check(configs) {
		v := &verdicts[of[i]]
		if answer.Err != nil {
			v.Findings = append(v.Findings, object.Finding{Field: at[i],
				Severity: condition.Warning, Message: fmt.Sprintf("%s is checked by Envoy alone: %v",
					configs[i].Type, answer.Err)})
			v.RevalidateAt = time.Now().Add(typedconfig.RetryAfter)
		}
		for _, f := range answer.Findings {
			v.Findings = append(v.Findings, c.finding(f, at[i]))
		}
	}
	return verdicts
}

// finding converts a finding in an object's typed_config at a path.
func (c filterCheck) finding(f typedconfig.Finding, at string) object.Finding {
	out := object.Finding{Field: at, Severity: f.Severity, Message: f.Message, Fix: f.Fix,
		UnknownField: f.UnknownField}
	if f.Field != "" && f.Field[0] != '[' {
		out.Field += "."
	}
	out.Field += f.Field
	if f.UnknownField && c.newer() {
		out.Severity = condition.Warning
		out.Fix = "Envoy alone checks it: this version of Outrider has the API of Envoy " +
			typedconfig.LinkedEnvoyAPI
	}
	return out
}
