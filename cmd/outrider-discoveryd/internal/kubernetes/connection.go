package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// servedFor is how long the list of the kinds that an API server serves is cached.
const servedFor = 5 * time.Second

// connection creates clients for an API server. After a failed request it reads the kubeconfig
// again, so that a new address, certificate or token takes effect.
type connection struct {
	kubeconfig string
	scheme     *runtime.Scheme

	mu      sync.Mutex
	clients map[schema.GroupVersion]rest.Interface

	discovery sync.Mutex
	kinds     map[string]schema.GroupVersionResource
	expires   time.Time
}

func newConnection(kubeconfig string) (*connection, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("register the types of Kubernetes: %w", err)
	}
	return &connection{kubeconfig: kubeconfig, scheme: scheme,
		clients: map[schema.GroupVersion]rest.Interface{}}, nil
}

// client returns the REST client for an API group and version.
func (c *connection) client(gv schema.GroupVersion) (rest.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client := c.clients[gv]; client != nil {
		return client, nil
	}
	config, err := configOf(c.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	if !isIstio(gv.Group) { // Istio's custom resources are available as JSON only
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	config.NegotiatedSerializer = serializer.WithoutConversionCodecFactory{
		CodecFactory: serializer.NewCodecFactory(c.scheme)}
	// No rate limit: all users of the connection send few requests.
	config.QPS = -1
	config.DisableCompression = true // compression would take longer than the transfer of the data
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = "outrider-discoveryd"
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	c.clients[gv] = client
	return client, nil
}

// configOf reads a kubeconfig; "" is the in-cluster configuration of a pod.
func configOf(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// HTTPClient returns an HTTP client with the credentials of a kubeconfig, and the URL of its API
// server. "" is the in-cluster configuration of a pod. Clients with the same kubeconfig share
// connections.
func HTTPClient(kubeconfig string) (client *http.Client, url string, err error) {
	config, err := configOf(kubeconfig)
	if err != nil {
		return nil, "", err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, "", err
	}
	client, err = rest.HTTPClientFor(config)
	return client, base.String(), err
}

// failed discards all clients, so that the next call of client reads the kubeconfig again.
func (c *connection) failed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.clients)
}

func isIstio(group string) bool { return strings.HasSuffix(group, ".istio.io") }

// served returns the newest version of one of Istio's kinds that the API server serves. ok is false
// if it serves none.
func (c *connection) served(ctx context.Context, kind string) (found schema.GroupVersionResource,
	ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	c.discovery.Lock()
	defer c.discovery.Unlock()
	if time.Now().After(c.expires) {
		kinds := map[string]schema.GroupVersionResource{}
		for _, gv := range versions() {
			if err := c.addServed(ctx, gv, kinds); err != nil {
				return found, false, fmt.Errorf("find the API version of %s: %w", kind, err)
			}
		}
		c.kinds, c.expires = kinds, time.Now().Add(servedFor)
	}
	found, ok = c.kinds[kind]
	return found, ok, nil
}

// addServed adds to kinds the resources that the API server serves in the group and version gv,
// except those of kinds that are already in the map.
func (c *connection) addServed(ctx context.Context, gv schema.GroupVersion,
	kinds map[string]schema.GroupVersionResource) error {
	client, err := c.client(gv)
	if err != nil {
		return err
	}
	text, err := client.Get().AbsPath("/apis", gv.Group, gv.Version).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("decode the list of API resources of %s: %w", gv, err)
	}
	for _, r := range list.APIResources {
		if _, known := kinds[r.Kind]; !known && !strings.Contains(r.Name, "/") {
			kinds[r.Kind] = gv.WithResource(r.Name)
		}
	}
	return nil
}
