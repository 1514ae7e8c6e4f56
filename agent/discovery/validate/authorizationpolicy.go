package validate

import (
	"fmt"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
)

// Limits of Istio's CRD, except longestValue. Istio does not limit values, but some become regular
// expressions in Envoy, whose cost grows with their length.
const (
	mostRules              = 512
	mostSources            = 512
	mostServiceAccounts    = 16
	longestServiceAccounts = 320
	longestValue           = 8192
)

func (c *checker) authorizationPolicy(o *object.Object, p *security.AuthorizationPolicy) {
	c.targeted(p)
	c.dryRun(o, p)
	if !c.most("rules", len(p.Rules), mostRules) {
		return
	}
	custom, none := p.Action == security.AuthorizationPolicy_CUSTOM, len(p.Rules) == 0
	switch {
	case none && (custom || p.Action == security.AuthorizationPolicy_DENY):
		c.fail("rules", fmt.Sprintf("%s without rules matches nothing", p.Action),
			"write rules; one empty rule, {}, matches everything")
	case custom && p.GetProvider().GetName() == "":
		c.fail("provider.name", "is missing", "name one of extensionProviders in MeshConfig")
	}
	if p.GetProvider() != nil && !custom {
		c.fail("provider", fmt.Sprintf("a policy with the action %s has no provider", p.Action),
			"remove it, or write action: CUSTOM")
	}
	for i, rule := range p.Rules {
		field := fmt.Sprintf("rules[%d]", i)
		before := len(c.findings)
		c.rule(field, rule, custom)
		if p.Action == security.AuthorizationPolicy_DENY {
			c.deniesConnections(field, rule)
		}
		if len(c.findings) == before {
			c.translated(field, rule)
		}
	}
}

// dryRun checks the annotation of policies that are evaluated but not enforced.
func (c *checker) dryRun(o *object.Object, p *security.AuthorizationPolicy) {
	text, ok := o.Annotations[object.DryRunAnnotation]
	if !ok {
		return
	}
	if _, err := strconv.ParseBool(text); err != nil {
		c.fail("", fmt.Sprintf("the annotation %s is %q", object.DryRunAnnotation, text),
			`write "true" or "false"`)
	}
	if p.Action != security.AuthorizationPolicy_ALLOW &&
		p.Action != security.AuthorizationPolicy_DENY {
		c.fail("", fmt.Sprintf("the annotation %s is for the actions ALLOW and DENY",
			object.DryRunAnnotation), "remove it")
	}
}

// translated reports an error if Envoy would refuse the translation of a rule.
func (c *checker) translated(field string, rule *security.Rule) {
	if err := (rbac.Translator{Namespace: c.namespace,
		TrustDomains: []string{mesh.Default().TrustDomain}}).Policy(rule).Validate(); err != nil {
		c.fail(field, "Envoy would refuse it: "+err.Error(), "correct the value it names")
	}
}

func (c *checker) rule(field string, rule *security.Rule, custom bool) {
	c.most(field+".from", len(rule.GetFrom()), mostSources)
	for i, from := range rule.GetFrom() {
		c.source(fmt.Sprintf("%s.from[%d].source", field, i), from.GetSource(), custom)
	}
	for i, to := range rule.GetTo() {
		c.operation(fmt.Sprintf("%s.to[%d].operation", field, i), to.GetOperation())
	}
	for i, when := range rule.GetWhen() {
		c.condition(fmt.Sprintf("%s.when[%d]", field, i), when, custom)
	}
}

// list is a field with a list of values.
type list struct {
	name   string
	values []string
	check  func(c *checker, field string, value string)
}

// lists checks the fields of a source or operation. At least one of them must have values.
func (c *checker) lists(field string, all []list) {
	count := 0
	for _, l := range all {
		count += len(l.values)
		c.values(field+"."+l.name, l.values, l.check)
	}
	if count == 0 {
		c.fail(field, "has no field with values", "write one, or remove the element")
	}
}

func (c *checker) values(field string, values []string, check func(*checker, string, string)) {
	if !c.notEmpty(field, values) {
		return
	}
	for i, value := range values {
		at := fmt.Sprintf("%s[%d]", field, i)
		c.longest(at, value, longestValue)
		check(c, at, value)
	}
}

// whichCustomLacks contains the fields of a source that Istio does not support for the action
// CUSTOM.
var whichCustomLacks = map[string]bool{"principals": true, "notPrincipals": true,
	"requestPrincipals": true, "notRequestPrincipals": true, "namespaces": true,
	"notNamespaces": true, "serviceAccounts": true, "notServiceAccounts": true,
	"trustDomains": true, "notTrustDomains": true}

func (c *checker) source(field string, s *security.Source, custom bool) {
	all := []list{
		{"principals", s.GetPrincipals(), anyValue},
		{"notPrincipals", s.GetNotPrincipals(), anyValue},
		{"requestPrincipals", s.GetRequestPrincipals(), anyValue},
		{"notRequestPrincipals", s.GetNotRequestPrincipals(), anyValue},
		{"namespaces", s.GetNamespaces(), anyValue},
		{"notNamespaces", s.GetNotNamespaces(), anyValue},
		{"ipBlocks", s.GetIpBlocks(), (*checker).addressBlock},
		{"notIpBlocks", s.GetNotIpBlocks(), (*checker).addressBlock},
		{"remoteIpBlocks", s.GetRemoteIpBlocks(), (*checker).addressBlock},
		{"notRemoteIpBlocks", s.GetNotRemoteIpBlocks(), (*checker).addressBlock},
		{"serviceAccounts", s.GetServiceAccounts(), (*checker).serviceAccount},
		{"notServiceAccounts", s.GetNotServiceAccounts(), (*checker).serviceAccount},
		{"trustDomains", s.GetTrustDomains(), (*checker).sourceTrustDomain},
		{"notTrustDomains", s.GetNotTrustDomains(), (*checker).sourceTrustDomain},
	}
	c.lists(field, all)
	if custom {
		for _, l := range all {
			if len(l.values) > 0 && whichCustomLacks[l.name] {
				c.fail(field+"."+l.name, "is not possible with the action CUSTOM", "remove it")
			}
		}
	}
	for _, l := range all {
		if strings.HasSuffix(strings.ToLower(l.name), "serviceaccounts") {
			c.most(field+"."+l.name, len(l.values), mostServiceAccounts)
		}
	}
	if len(s.GetServiceAccounts())+len(s.GetNotServiceAccounts()) > 0 &&
		len(s.GetPrincipals())+len(s.GetNotPrincipals())+len(s.GetNamespaces())+
			len(s.GetNotNamespaces()) > 0 {
		c.fail(field+".serviceAccounts", "excludes principals and namespaces",
			"write the namespace before the account: NAMESPACE/ACCOUNT")
	}
}

func (c *checker) operation(field string, o *security.Operation) {
	c.lists(field, []list{
		{"hosts", o.GetHosts(), anyValue}, {"notHosts", o.GetNotHosts(), anyValue},
		{"ports", o.GetPorts(), (*checker).portText},
		{"notPorts", o.GetNotPorts(), (*checker).portText},
		{"methods", o.GetMethods(), anyValue}, {"notMethods", o.GetNotMethods(), anyValue},
		{"paths", o.GetPaths(), (*checker).pathTemplate},
		{"notPaths", o.GetNotPaths(), (*checker).pathTemplate},
	})
}

// formats maps the keys of conditions whose values have a format to the function that checks it.
var formats = map[string]func(*checker, string, string){
	"source.ip": (*checker).addressBlock, "remote.ip": (*checker).addressBlock,
	"destination.ip": (*checker).addressBlock, "destination.port": (*checker).portText,
	"source.serviceAccount": (*checker).serviceAccount,
	"source.trustDomain":    (*checker).oneWildcard,
}

func (c *checker) condition(field string, when *security.Condition, custom bool) {
	key := when.GetKey()
	switch {
	case key == "":
		c.fail(field+".key", "is missing", "write an attribute such as source.ip")
		return
	case !rbac.IsConditionKey(key):
		c.fail(field+".key", fmt.Sprintf("there is no attribute %q", key),
			"write one of Istio's reference of authorization policy conditions")
		return
	case rbac.IsBracketedConditionKey(key):
		c.named(field+".key", key)
	}
	if custom && (whichCustomLacks[strings.TrimPrefix(key, "source.")+"s"] ||
		strings.HasPrefix(key, "request.auth.")) {
		c.fail(field+".key", key+" is not possible with the action CUSTOM", "remove the condition")
	}
	if len(when.GetValues())+len(when.GetNotValues()) == 0 {
		c.fail(field+".values", "is missing", "write values or notValues")
	}
	check := formats[key]
	if check == nil {
		check = anyValue
	}
	if key == "source.serviceAccount" {
		c.most(field+".values", len(when.GetValues()), mostServiceAccounts)
		c.most(field+".notValues", len(when.GetNotValues()), mostServiceAccounts)
	}
	c.values(field+".values", when.GetValues(), check)
	c.values(field+".notValues", when.GetNotValues(), check)
}

// named checks a key with a name in brackets, such as request.headers[NAME].
func (c *checker) named(field, key string) {
	before, name, _ := strings.Cut(key, "[")
	if !strings.HasSuffix(key, "]") || name == "]" || strings.ContainsAny(name, "\x00\r\n") ||
		before != "request.headers" && before != "request.auth.claims" &&
			!strings.HasPrefix(before, "experimental.envoy.filters.") {
		c.fail(field, fmt.Sprintf("%q has no name in brackets", key),
			"write it as request.headers[NAME]")
	}
}

// deniesConnections warns about a DENY rule with attributes of requests: on ports without HTTP it
// denies more, because connections have no such attributes.
func (c *checker) deniesConnections(field string, rule *security.Rule) {
	ofConnections, ports := false, false
	for _, from := range rule.GetFrom() {
		s := from.GetSource()
		ofConnections = ofConnections || len(s.GetPrincipals())+len(s.GetNotPrincipals())+
			len(s.GetNamespaces())+len(s.GetNotNamespaces())+len(s.GetIpBlocks())+
			len(s.GetNotIpBlocks())+len(s.GetRemoteIpBlocks())+len(s.GetNotRemoteIpBlocks())+
			len(s.GetServiceAccounts())+len(s.GetNotServiceAccounts())+len(s.GetTrustDomains())+
			len(s.GetNotTrustDomains()) > 0
	}
	for _, to := range rule.GetTo() {
		o := to.GetOperation()
		ports = ports || len(o.GetPorts())+len(o.GetNotPorts()) > 0
	}
	if len(rule.GetTo()) > 0 && !ports ||
		len(rule.GetTo()) == 0 && len(rule.GetFrom()) > 0 && !ofConnections {
		c.warn(field, "denies, on ports without HTTP, all connections that its other attributes "+
			"match: there are no requests", "name the ports in to[].operation.ports")
	}
}
