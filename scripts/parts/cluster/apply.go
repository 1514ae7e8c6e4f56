package cluster

import (
	"fmt"
	"net/http"
	"strings"

	"sigs.k8s.io/yaml"
)

// Apply creates or replaces the Istio objects in file, a text with YAML documents.
func (c *Cluster) Apply(file string) {
	c.t.Helper()
	for object := range strings.SplitSeq(file, "\n---\n") {
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Namespace, Name string }
		}
		if err := yaml.Unmarshal([]byte(object), &o); err != nil {
			c.t.Fatalf("%v: %s", err, object)
		}
		c.sendDefined(http.MethodPatch, fmt.Sprintf(
			"/apis/%s/namespaces/%s/%s/%s?fieldManager=test&force=true", o.APIVersion,
			o.Metadata.Namespace, resourceOf(o.Kind), o.Metadata.Name), object)
	}
}

// resourceOf returns the name that a kind has in paths of the API, such as virtualservices.
func resourceOf(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		kind = stem + "ie"
	}
	return strings.ToLower(kind) + "s"
}
