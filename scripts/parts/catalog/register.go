package catalog

import (
	"cmp"
	"net/http"
	"testing"
)

// Instance is the registration of a service instance on a node of its own. If Status is set, it has
// a health check with that status.
type Instance struct {
	Service, ID string // service name and ID of the instance; ID "": Service
	Node        string // name of the node; "": ID
	Address     string
	Port        int
	Tags        []string
	Meta        map[string]string
	Weights     *Weights
	Status      string // passing, warning or critical; "": no health check
}

// Weights are the weights of an instance for load balancing, by the status of its health check.
type Weights struct {
	Healthy int `json:"Passing"`
	Warning int
}

func (i Instance) id() string   { return cmp.Or(i.ID, i.Service) }
func (i Instance) node() string { return cmp.Or(i.Node, i.id()) }

// Register adds or replaces an instance in the catalogue.
func (c *Consul) Register(t testing.TB, i Instance) {
	t.Helper()
	service := map[string]any{"ID": i.id(), "Service": i.Service, "Address": i.Address,
		"Port": i.Port, "Tags": i.Tags, "Meta": i.Meta}
	if i.Weights != nil {
		service["Weights"] = i.Weights
	}
	body := map[string]any{"Node": i.node(), "Address": cmp.Or(i.Address, "10.0.0.1"),
		"Service": service}
	if i.Status != "" {
		body["Check"] = i.check("service:" + i.id())
	}
	c.Do(t, http.MethodPut, "/v1/catalog/register", body, nil)
}

func (i Instance) check(id string) map[string]any {
	return map[string]any{"Node": i.node(), "CheckID": id, "Name": id, "Status": i.Status,
		"ServiceID": i.id()}
}

// SetStatus sets the status of an instance's health check.
func (c *Consul) SetStatus(t testing.TB, i Instance, status string) {
	t.Helper()
	i.Status = status
	c.Do(t, http.MethodPut, "/v1/catalog/register", map[string]any{"Node": i.node(),
		"SkipNodeUpdate": true, "Check": i.check("service:" + i.id())}, nil)
}

// SetNodeStatus sets the status of a node's health check.
func (c *Consul) SetNodeStatus(t testing.TB, node, status string) {
	t.Helper()
	c.Do(t, http.MethodPut, "/v1/catalog/register", map[string]any{"Node": node,
		"SkipNodeUpdate": true, "Check": map[string]any{"Node": node, "CheckID": "serfHealth",
			"Name": "serf", "Status": status}}, nil)
}

// Deregister removes an instance from the catalogue.
func (c *Consul) Deregister(t testing.TB, i Instance) {
	t.Helper()
	c.Do(t, http.MethodPut, "/v1/catalog/deregister", map[string]any{"Node": i.node(),
		"ServiceID": i.id()}, nil)
}

// SetMaintenance enables or disables the maintenance mode of an instance.
func (c *Consul) SetMaintenance(t testing.TB, i Instance, on bool) {
	t.Helper()
	id := "_service_maintenance:" + i.id()
	if !on {
		c.Do(t, http.MethodPut, "/v1/catalog/deregister", map[string]any{"Node": i.node(),
			"CheckID": id}, nil)
		return
	}
	i.Status = "critical"
	c.Do(t, http.MethodPut, "/v1/catalog/register", map[string]any{"Node": i.node(),
		"SkipNodeUpdate": true, "Check": i.check(id)}, nil)
}

// CreateToken creates an ACL token whose policy has these rules, and returns its secret ID. With ""
// the token has no rights.
func (c *Consul) CreateToken(t testing.TB, rules string) string {
	t.Helper()
	body := map[string]any{}
	if rules != "" {
		c.Do(t, http.MethodPut, "/v1/acl/policy", map[string]any{"Name": "policy", "Rules": rules}, nil)
		body["Policies"] = []any{map[string]any{"Name": "policy"}}
	}
	var token struct{ SecretID string }
	c.Do(t, http.MethodPut, "/v1/acl/token", body, &token)
	return token.SecretID
}

// AccessorID returns the accessor ID of the token with a secret ID.
func (c *Consul) AccessorID(t testing.TB, secret string) string {
	t.Helper()
	var tokens []struct{ AccessorID, SecretID string }
	c.Do(t, http.MethodGet, "/v1/acl/tokens", nil, &tokens)
	for _, token := range tokens {
		if token.SecretID == secret {
			return token.AccessorID
		}
	}
	t.Fatal("no such token")
	return ""
}
